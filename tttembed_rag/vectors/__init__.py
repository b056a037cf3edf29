"""Numbers: unit vectors, checks of incoming ones, and the products of a fit. Private: may change without notice."""
