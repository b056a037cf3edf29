"""The plain rule: rewards of a scope in, its certified offset out. Private: may change without notice."""
