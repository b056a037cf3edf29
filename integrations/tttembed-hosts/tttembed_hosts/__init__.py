"""Other people's releases in one place: each module is for one of them, is imported by itself and has its own extra.

`chroma`, `lancedb`, `sentence_transformers`, `pydantic_ai`, `dspy`, `mem0` steer the queries of a framework or a store;
`fastmcp`, `mcp_front` and `pydantic_ai` search over the tools of agents; `phoenix` and `judgments` exchange verdicts;
`mteb` and `catalogue` measure on public collections; `stored` reads vectors of documents from their store.
"""
