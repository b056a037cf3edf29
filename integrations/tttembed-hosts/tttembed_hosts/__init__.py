"""Other people's releases in one place: each module is for one of them, and is imported by itself.

A module has an extra of its own, unless it takes a client that you have made. To add one, write it here, and name its
extra in ``all`` of `pyproject.toml`.

`chroma`, `lancedb`, `sentence_transformers`, `pydantic_ai`, `dspy`, `mem0` steer the queries of a framework or a store;
`phoenix`, `langfuse`, `langsmith` (with `tracing`) and `judgments` exchange verdicts; `mteb` and `collections`
measure on public collections; `stored_vectors` reads vectors of documents from Qdrant, pgvector, Chroma, Elasticsearch
and Weaviate.
"""
