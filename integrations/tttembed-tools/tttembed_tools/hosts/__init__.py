"""The search over tools and memories in the frameworks of others: each module is for one, and is imported by itself."""
