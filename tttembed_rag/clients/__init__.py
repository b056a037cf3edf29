"""The common ground of judges and embedders: loading, asking again, options. Private: may change without notice."""
