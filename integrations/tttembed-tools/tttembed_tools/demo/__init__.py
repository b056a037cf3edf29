"""The `tttembed demo`: an agent's search over the tools of an office. Private: may change without notice."""
