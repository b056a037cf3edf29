"""The `tttembed demo`: agent tool retrieval over the standard library of the running Python.

Private: may change without notice.
"""
