"""The search over tools and memories in the frameworks of others. Private: may change without notice.

Each module is for one framework and is imported by itself; the names that it lists are public.
"""
