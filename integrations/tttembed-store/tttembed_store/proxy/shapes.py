"""The shapes of embedding requests and their answers: OpenAI's (``.../embeddings``) and Cohere's (``.../embed``).

Only a query may be steered. Whether a request holds queries is said, in this order, by the header ``X-TTT-Role``, by
``input_type`` in the body, or by a model named ``NAME@query``. The first of them that is there decides; where none is,
nothing is steered.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import orjson

# (vector, number of the text) to the vector to hand out, as a list.
Turn: TypeAlias = Callable[[Any, int], Any]

_QUERIES = frozenset({"query", "search_query"})
_ALIASES = ("@query", "@document")
# Where texts stand in a request, and the model in the paths of Azure.
_TEXTS = ("input", "texts", "inputs", "images")
_DEPLOYMENT = re.compile(r"/deployments/([^/]+)/")


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """An embedding request for a model, without its alias, and the body that the upstream is sent.

    The texts are one for each vector of the answer; there is none for tokens and images.
    """

    model: str
    texts: list[str]
    is_query: bool
    body: bytes


def is_embedding_path(path: str) -> bool:
    """Whether a request to *path* asks for embeddings."""
    return path.rstrip("/").endswith(("/embeddings", "/embed"))


def read_request(path: str, role: str | None, body: bytes) -> EmbeddingRequest | None:
    """What the request *body* to *path* asks for, with the header's *role*; None where it is no such request."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    deployment = _DEPLOYMENT.search(path)
    model, kind = fields.get("model", deployment and deployment[1]) if isinstance(fields, dict) else None, None
    if not isinstance(model, str):
        return None
    if model.endswith(_ALIASES):
        model, _, kind = model.rpartition("@")
        body = orjson.dumps(fields | {"model": model})
    kind = role or fields.get("input_type") or kind
    is_query = isinstance(kind, str) and kind.lower() in _QUERIES
    texts: Any = next((fields[name] for name in _TEXTS if fields.get(name)), [])
    return EmbeddingRequest(model, _texts(texts), is_query, body)


def _texts(texts: Any) -> list[str]:
    if isinstance(texts, str):
        return [texts]
    if not isinstance(texts, list):
        return []
    if texts and all(isinstance(token, int) for token in texts):  # the tokens of one text
        return [""]
    return [text if isinstance(text, str) else "" for text in texts]


def steered_answer(body: bytes, turn: Turn) -> tuple[bytes, int]:
    """The answer *body* of the upstream with its vectors turned, and how many were.

    Without any, the very bytes that came. Vectors in whole numbers or bits (``int8``, ``ubinary``) cannot be steered
    and are left as they are.
    """
    answer = orjson.loads(body)
    if "data" in answer:
        items = enumerate(answer["data"])
        turned = sum(_turn(item, "embedding", turn, item.get("index", place)) for place, item in items)
    else:
        kinds = answer["embeddings"]  # of Cohere's older endpoint, vectors
        kinds = [kinds] if isinstance(kinds, list) else [kinds[kind] for kind in ("float", "base64") if kinds.get(kind)]
        turned = sum(_turn(vectors, place, turn, place) for vectors in kinds for place in range(len(vectors)))
    return (orjson.dumps(answer), turned) if turned else (body, 0)


def _turn(holder: Any, place: Any, turn: Turn, number: int) -> bool:
    """Turn the vector that stands in *holder* at *place*; gives whether it changed."""
    stored = holder[place]
    if isinstance(stored, str):
        vector = np.frombuffer(base64.b64decode(stored, validate=True), dtype="<f4").astype(np.float64)
        turned = np.asarray(turn(vector, number))
        if np.array_equal(turned, vector):
            return False
        holder[place] = base64.b64encode(turned.astype("<f4").tobytes()).decode("ascii")
        return True
    holder[place] = turn(stored, number)
    return bool(holder[place] != stored)
