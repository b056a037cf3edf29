"""The scripts, in order; each names the one before it."""
