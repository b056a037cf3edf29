"""What was served and the rewards of it: written, read for a fit, marked as new. Private: may change without notice."""
