"""Scripts that make and change the tables of a store, run by `open_store`. Private: may change without notice."""
