"""DSPy: a retriever whose searches are steered, after its corpus was embedded.

    search = steer(dspy.retrievers.Embeddings(corpus, embedder), offsets=follow(url), task="billing")

DSPy embeds its corpus and its queries with one object that names no role. Only once the corpus is embedded may that
object steer: give `steer` a retriever that was built, or loaded, with the embedder itself. Searches run in a thread
of DSPy's, so the caller's ``with context(...)`` is not seen there: name the task here, by a function from query to task
where it varies.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from tttembed_rag import InputError, Offsets, Steering
from tttembed_rag.adapting import OffsetSupplier, TaskSource

__all__ = ["QueryEmbedder", "steer"]

RetrieverT = TypeVar("RetrieverT")


class QueryEmbedder:
    """An embedder of queries alone: the wrapped one, with an offset added to every vector.

    Args:
        embedder: A ``dspy.Embedder``, or any function from texts to vectors (n, d).
        steering: What adds the offset.
    """

    def __init__(self, embedder: Any, steering: Steering) -> None:
        self.embedder = embedder
        self._steering = steering

    def __call__(self, inputs: str | list[str], **options: Any) -> Any:
        """Vectors of queries with their offset: (d,) for one text, (n, d) for several."""
        base = np.asarray(self.embedder(inputs, **options))
        if isinstance(inputs, str):
            return np.asarray(self._steering.apply(base, inputs), dtype=base.dtype)
        turned = [self._steering.apply(vector, text) for vector, text in zip(base, inputs, strict=True)]
        return np.asarray(turned, dtype=base.dtype)


def steer(retriever: RetrieverT, *, offsets: Offsets | OffsetSupplier, task: TaskSource = None) -> RetrieverT:
    """*retriever* itself, whose searches are steered from now on; its corpus keeps its vectors.

    Args:
        retriever: A ``dspy.retrievers.Embeddings``, whose corpus is embedded.
        offsets: Learned offsets; `LiveOffsets`, or a store that is followed, where they are replaced while serving.
        task: The task of every query, or a function from query text to task.

    Raises:
        InputError: *retriever* has no corpus vectors and embedder, or is steered already.
    """
    embedder: Any = getattr(retriever, "embedder", None)
    if not callable(embedder) or getattr(retriever, "corpus_embeddings", None) is None:
        raise InputError(f"retriever: expected a dspy Embeddings retriever, got {type(retriever).__name__}")
    if isinstance(embedder, QueryEmbedder):
        raise InputError("retriever: expected one without offsets, got one that is steered already")
    retriever.embedder = QueryEmbedder(embedder, Steering(offsets, task))  # type: ignore[attr-defined]
    return retriever
