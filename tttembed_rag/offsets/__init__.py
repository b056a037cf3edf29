"""Offsets: what was learned for each scope, on what evidence, and how it reaches a query vector.

Private: may change without notice.
"""
