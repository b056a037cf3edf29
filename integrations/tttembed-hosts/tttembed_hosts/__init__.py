"""Other people's releases in one place: each module is for one of them, is imported by itself and has its own extra.

`chroma`, `lancedb`, `sentence_transformers`, `pydantic_ai`, `dspy`, `mem0` steer the queries of a framework or a store;
`phoenix`, `langfuse`, `langsmith` (with `tracing`) and `judgments` exchange verdicts; `mteb` and `catalogue`
measure on public collections; `stored_vectors` reads vectors of documents from Qdrant, pgvector, Chroma, Elasticsearch
and Weaviate.
"""
