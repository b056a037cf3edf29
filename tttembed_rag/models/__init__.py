"""What judges and embedders share: loading, asking again, options of one line, fingerprints."""
