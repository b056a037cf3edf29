"""The fingerprint of a model, and the address of a pair that it judged."""

from __future__ import annotations

import hashlib
import json

# The instruction that all reward models of the paper receive.
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def fingerprint_of(kind: str, model: str, **parts: object) -> str:
    """A readable, stable name: ``kind:model@`` and a hash of everything else that decides the scores."""
    text = json.dumps([kind, model, parts], sort_keys=True, default=str)
    return f"{kind}:{model}@{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def pair_key(fingerprint: str, query: str, document: str) -> bytes:
    """The address of a pair: a hash of the judge's fingerprint and of both texts, not of their ids."""
    digest = hashlib.sha256()
    for part in (fingerprint, query, document):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()
