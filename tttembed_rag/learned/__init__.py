"""An embedding model and a reranker in, one sentence out. Private: may change without notice."""
