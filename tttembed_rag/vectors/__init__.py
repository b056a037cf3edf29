"""Numbers: unit vectors, checks of incoming ones, and the products that a fit spends its time on.

Private: may change without notice.
"""
