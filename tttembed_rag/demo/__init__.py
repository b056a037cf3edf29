"""The `tttembed demo`: an agent's search over the tools of an office, whose people have habits.

Private: may change without notice.
"""
