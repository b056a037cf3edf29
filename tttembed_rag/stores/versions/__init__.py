"""What was published: the versions, the aliases that point to them, and who changed what.

Private: may change without notice.
"""
