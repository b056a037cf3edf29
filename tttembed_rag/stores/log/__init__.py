"""What was served, and the rewards of it: writing it, reading it for a fit, and marking whose is new.

Private: may change without notice.
"""
