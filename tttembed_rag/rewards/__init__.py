"""What flows through the package: queries that were served, feedback on them, and rewards as columns to fit from.

Private: may change without notice.
"""
