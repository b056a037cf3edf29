"""An embedding model that adds an offset to its query vectors.

What to know before wrapping:

- The QueryBundle trap: ``VectorIndexRetriever`` writes the query vector into the caller's
  ``QueryBundle.embedding`` and, where it finds one, never embeds again. A bundle used twice keeps
  the vector of its first task and first offsets. Pass strings, or a new bundle per retrieval.
- ``KGTableRetriever`` embeds queries as texts, and stores that embed on the server never ask: no
  offset there. Selectors and memory embed queries as queries: as ``Settings.embed_model`` this
  model steers them too.
- Absolute scores change with the offset, so a similarity cutoff must be tuned again.
- Both models report an embedding event; the inner one carries the base vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.bridge.pydantic import BaseModel, PrivateAttr
from llama_index.core.callbacks import CallbackManager
from llama_index.core.embeddings import MultiModalEmbedding
from numpy.typing import NDArray

from tttembed_rag import InputError, Offsets, RewardLog, Rewards, Steering, TextVectors
from tttembed_rag.adapting import OffsetSupplier, Request, TaskSource


class TTTEmbedding(BaseEmbedding):
    """The wrapped embedding model, with an offset added to every query vector: its private one, else its task's.

    Texts pass through bit for bit, so an index built with the wrapped model stays valid. A query
    without an offset, or with a vector that offsets refuse (NaN, zero, another width), keeps its base
    vector; the first refusal of a task is logged. The wrapped model is asked through its public
    methods, so its cache, rate limiter and batches keep working.

    Args:
        embed_model: The model to wrap; its name, batch size and number of workers are taken over.
        offsets: Learned offsets; `LiveOffsets`, or a store that is followed, where they are replaced while serving.
        task: The task of every query, or a function from query text to task. Without a fixed task,
            the caller's ``with tttembed_rag.context(...)`` comes first. A query that nothing gives a
            task looks up the default task; that and an unknown task fall back to the global
            offset, and without one to the base vector.
        vectors: Gives `rewards` document vectors before it embeds again.
        callback_manager: Callbacks for the steered vectors; None for LlamaIndex's global ones.

    Raises:
        InputError: *embed_model* is no ``BaseEmbedding``, is multi-modal or already wrapped,
            *offsets* are no ``Offsets`` or of another width than the model says, or *task* is neither
            string nor function.
    """

    _embed_model: BaseEmbedding = PrivateAttr()
    _steering: Steering = PrivateAttr()
    _vectors: TextVectors = PrivateAttr()

    def __init__(
        self,
        embed_model: BaseEmbedding,
        *,
        offsets: Offsets | OffsetSupplier,
        task: TaskSource = None,
        vectors: TextVectors | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        _check_model(embed_model)
        steering = Steering(offsets, task, model=embed_model)
        super().__init__(
            model_name=embed_model.model_name,
            embed_batch_size=embed_model.embed_batch_size,
            num_workers=embed_model.num_workers,
            callback_manager=callback_manager or CallbackManager(),
        )
        self._embed_model = embed_model
        self._steering = steering
        self._vectors = vectors or TextVectors()

    @classmethod
    def class_name(cls) -> str:
        """The name LlamaIndex serialises the model under."""
        return "TTTEmbedding"

    @property
    def base(self) -> BaseEmbedding:
        """The wrapped model."""
        return self._embed_model

    def for_task(self, task: TaskSource) -> TTTEmbedding:
        """A copy for another task, with this model and these offsets; cheap enough for every request."""
        other = self.model_copy()
        other._steering = self._steering.for_task(task)  # noqa: SLF001 - a copy of this very class
        return other

    def embed_query_base(self, query: str) -> Embedding:
        """The base query vector, exactly as the wrapped model gives it."""
        return self._embed_model.get_query_embedding(query)

    async def aembed_query_base(self, query: str) -> Embedding:
        """The base query vector, exactly as the wrapped model gives it."""
        return await self._embed_model.aget_query_embedding(query)

    def request(self, query: str, found_by: object = None) -> Request:
        """*query* with what is live now: its vector, and the order of what a search with that finds.

        Args:
            query: Its text.
            found_by: The vector that this model gave for a search, as it stands in the search's ``QueryBundle``: the
                request is that of this vector then.
        """
        if isinstance(found_by, SteeredVector) and found_by.request.serves(query):
            return found_by.request
        return self._steering.request(query)

    def task_of(self, query: str) -> str | None:
        """The task that gives *query* its offset; None where no task is named."""
        return self._steering.task_of(query)

    def rewards(self, log: RewardLog, *, vectors: TextVectors | None = None, embedder: str = "") -> Rewards:
        """The rewards in *log* with base query vectors and document vectors, ready for `fit`.

        Offsets that are learned from them carry *embedder*, the name of the wrapped model, and serve no other.
        """
        if not isinstance(log, RewardLog):
            raise InputError(f"log: expected a RewardLog, got {type(log).__name__}")
        model = self._embed_model
        return log.rewards(
            model.get_query_embedding,
            model.get_text_embedding_batch,
            vectors=vectors or self._vectors,
            embedder=embedder,
        )

    def document_vectors(self, texts: Sequence[str], *, vectors: TextVectors | None = None) -> NDArray[Any]:
        """Vectors (n, d) of texts, supplied or remembered where possible."""
        return (vectors or self._vectors).of(texts, self._embed_model.get_text_embedding_batch)

    async def adocument_vectors(self, texts: Sequence[str], *, vectors: TextVectors | None = None) -> NDArray[Any]:
        """Vectors (n, d) of texts, supplied or remembered where possible."""
        return await (vectors or self._vectors).aof(texts, self._embed_model.aget_text_embedding_batch)

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """The model's settings, which an ingestion cache hashes, never the offsets.

        Documents do not depend on the offsets, so publishing new ones leaves the cache valid.
        """
        return {**super().to_dict(**kwargs), "embed_model": self._embed_model.to_dict(**kwargs)}

    def get_agg_embedding_from_queries(self, queries: list[str], agg_fn: Callable[..., Embedding] | None = None) -> Any:
        """The vector of one query as it is; of several, what *agg_fn* makes of theirs, which is their mean."""
        if len(queries) == 1 and agg_fn is None:
            return self.get_query_embedding(queries[0])
        return super().get_agg_embedding_from_queries(queries, agg_fn)

    async def aget_agg_embedding_from_queries(
        self, queries: list[str], agg_fn: Callable[..., Embedding] | None = None
    ) -> Any:
        """The same, awaiting the model."""
        if len(queries) == 1 and agg_fn is None:
            return await self.aget_query_embedding(queries[0])
        return await super().aget_agg_embedding_from_queries(queries, agg_fn)

    def _get_query_embedding(self, query: str) -> Embedding:
        return SteeredVector(self.request(query), self._embed_model.get_query_embedding(query))

    async def _aget_query_embedding(self, query: str) -> Embedding:
        return SteeredVector(self.request(query), await self._embed_model.aget_query_embedding(query))

    def _get_text_embedding(self, text: str) -> Embedding:
        return self._embed_model.get_text_embedding(text)

    async def _aget_text_embedding(self, text: str) -> Embedding:
        return await self._embed_model.aget_text_embedding(text)

    def _get_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return self._embed_model.get_text_embedding_batch(texts)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return await self._embed_model.aget_text_embedding_batch(texts)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "embeddings_cache" and value is not None:
            raise InputError(
                "embeddings_cache: expected None (it keys on the text alone, so a query's steered vector "
                "would be served for a document); give the cache to the wrapped model"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"TTTEmbedding({type(self._embed_model).__name__}, {self._steering!r})"

    # BaseComponent would drop what it cannot pickle, offsets included; pydantic keeps everything or
    # raises. Only the callbacks stay behind: they belong to the process. Unpickling, BaseComponent
    # tries __init__ with the fields alone, which fails for want of offsets, then sets this state.
    def __getstate__(self) -> dict[str, Any]:
        state = BaseModel.__getstate__(self)
        return {**state, "__dict__": {**state["__dict__"], "callback_manager": CallbackManager()}}


class SteeredVector(list[float]):
    """The vector that a query is searched with. It carries the request that steered it, which sorts what it finds."""

    def __init__(self, request: Request, base: Sequence[float]) -> None:
        super().__init__(request.vector(base))
        self.request = request

    def __reduce__(self) -> tuple[type[list[float]], tuple[list[float]]]:
        """In another process, or a copy, the numbers alone."""
        return list, (list(self),)


def _check_model(embed_model: BaseEmbedding) -> None:
    if isinstance(embed_model, TTTEmbedding):
        raise InputError("embed_model: expected an unwrapped model, got TTTEmbedding; pass its .base")
    if isinstance(embed_model, MultiModalEmbedding):
        raise InputError(
            f"embed_model: expected a text model, got the multi-modal {type(embed_model).__name__}; "
            "its image methods would be lost"
        )
    if not isinstance(embed_model, BaseEmbedding):
        raise InputError(f"embed_model: expected a LlamaIndex BaseEmbedding, got {type(embed_model).__name__}")
