"""The gate: held-out rewards decide which offset is served, and whether any is.

Private: may change without notice.
"""
