"""The common ground of judges and embedders: loading, asking again, options of one line, fingerprints.

Private: may change without notice.
"""
