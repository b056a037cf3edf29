"""Node postprocessors: one has nodes judged, now or later; one sorts them by what rewards taught of words."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, Literal

from llama_index.core.bridge.pydantic import BaseModel, PrivateAttr
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_index.embeddings.tttembed.base import TTTEmbedding
from llama_index.embeddings.tttembed.resolvers import ids_of

from tttembed_rag import InputError, Judge, TextVectors
from tttembed_rag.adapting import (
    FailureLog,
    Log,
    Request,
    Sorter,
    TaskSource,
    ascored,
    checked_judge,
    checked_log,
    checked_rewards,
    checked_task,
    in_reward_order,
    resolve_task,
    scored,
)
from tttembed_rag.errors import check_count
from tttembed_rag.serving import Cascade

logger = logging.getLogger(__name__)


class _Whole(BaseNodePostprocessor):
    """One that is pickled with all that it has, or not at all: LlamaIndex would drop what it cannot pickle."""

    def __getstate__(self) -> dict[str, Any]:
        state = BaseModel.__getstate__(self)  # without callbacks, which belong to the process
        return {**state, "__dict__": {**state["__dict__"], "callback_manager": CallbackManager()}}


class RewardPostprocessor(_Whole):
    """Nodes as they came, noted for a judge; or all of them judged now, in the order of their rewards.

    The judge reads what was embedded: the text with its metadata. All nodes are scored before the
    best *top_n* are kept, and all scores are recorded. Where judging or recording fails, that is
    logged and the nodes stand as they came.

    Args:
        log: Keeps nodes and scores. A judge whose order is served is declared: `Log.declare`.
        judge: Scores the nodes; None only notes them, to be judged later.
        top_n: Nodes kept, >= 1; None keeps all.
        task: As in `TTTEmbedding`, best the wrapped model itself.
        vectors: Keeps the id of each node in the index; give the same to `TTTEmbedding.rewards`.
        source: Who gives the judge's scores: empty is the judge itself, None the source of the caller's
            ``with tttembed_rag.context(..., source=...)``, where each agent judges for itself.

    Raises:
        InputError: The log is for another judge, *top_n* is below 1, or *task* is neither string nor function.
    """

    _log: Log = PrivateAttr()
    _judge: Judge | None = PrivateAttr()
    _task: TaskSource = PrivateAttr()
    _top_n: int | None = PrivateAttr()
    _vectors: TextVectors | None = PrivateAttr()
    _source: str | None = PrivateAttr()
    _failures: FailureLog = PrivateAttr(default_factory=lambda: FailureLog(logger))

    def __init__(
        self,
        log: Log,
        judge: Judge | None = None,
        *,
        top_n: int | None = None,
        task: TaskSource = None,
        vectors: TextVectors | None = None,
        source: str | None = "",
    ) -> None:
        checked_log(log)
        if judge is not None:
            log.check_is_for(checked_judge(judge))
            if source == "":
                log.declare(type(self).__name__)
        if top_n is not None:
            check_count("top_n", top_n)
        super().__init__()
        self._top_n = top_n
        self._log = log
        self._judge = judge
        self._task = checked_task(task)
        self._vectors = vectors
        self._source = source

    @classmethod
    def class_name(cls) -> str:
        """The name LlamaIndex serialises it under."""
        return "RewardPostprocessor"

    @property
    def mode(self) -> Literal["observe", "rerank"]:
        """``observe`` without a judge, ``rerank`` with one."""
        return "observe" if self._judge is None else "rerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes:
            return nodes
        try:
            texts, query = read_texts(nodes), text_of(query_bundle)
            scores = scored(self._judge, query, texts) if self._judge else None
            return self._kept(nodes, query, texts, scores)
        except Exception:  # noqa: BLE001 - whatever it is, it is logged, and the request goes on
            self._failures.exception("%d nodes stand as they came", len(nodes))
            return nodes[: self._top_n]

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes:
            return nodes
        try:
            texts, query = read_texts(nodes), text_of(query_bundle)
            scores = await ascored(self._judge, query, texts) if self._judge else None
            return self._kept(nodes, query, texts, scores)
        except Exception:  # noqa: BLE001 - whatever it is, it is logged, and the request goes on
            self._failures.exception("%d nodes stand as they came", len(nodes))
            return nodes[: self._top_n]

    def _kept(
        self, nodes: list[NodeWithScore], query: str, texts: list[str], scores: Sequence[float | None] | None
    ) -> list[NodeWithScore]:
        task = resolve_task(self._task, query)
        if self._vectors is not None:
            self._vectors.note(ids_of(nodes))
        if self._judge is None or scores is None:
            self._log.observe(query, texts, task=task)
            return nodes[: self._top_n]
        rewards = checked_rewards(self._judge, scores)
        self._log.record(query, texts, scores, task=task, source=self._source)
        return rewarded(nodes, rewards.tolist())[: self._top_n]


class RescoringPostprocessor(_Whole):
    """Nodes sorted by what verdicts taught of similarity and shared words; no judge is asked but by a *cascade*.

    Retrieve 20 to 100 nodes for it (``similarity_top_k=50``) from a store whose scores are cosine similarities. Where
    no rescorer is published for the task they stand as they came. Scores are not changed. Where the ``QueryBundle`` of
    the search comes with them, as in a query engine, the version that found the nodes sorts them, also where another
    one is published meanwhile. LlamaIndex's retrievers write no vector into the bundle of an asynchronous search: its
    nodes are sorted by what is live when they come.

    Args:
        embed_model: The wrapped model of the index.
        top_n: Nodes kept, >= 1; None keeps all.
        cascade: A reranker behind it, asked only where its answer may change the list; None asks none.
        floor: Share of requests that may lose an answer, such as .05. Then there is no node where nothing fits, and the
            scores of the others are how likely they are relevant: see `Offsets.floor`. None changes no score.

    Raises:
        InputError: *embed_model* is not wrapped, *top_n* is below 1, *cascade* is none, or *floor* is no share.
    """

    _embed_model: TTTEmbedding = PrivateAttr()
    _top_n: int | None = PrivateAttr()
    _sorter: Sorter = PrivateAttr()

    def __init__(
        self,
        embed_model: TTTEmbedding,
        *,
        top_n: int | None = None,
        cascade: Cascade | None = None,
        floor: float | None = None,
    ) -> None:
        if not isinstance(embed_model, TTTEmbedding):
            raise InputError(f"embed_model: expected TTTEmbedding, got {type(embed_model).__name__}")
        if top_n is not None:
            check_count("top_n", top_n)
        sorter = Sorter(cascade, floor)
        super().__init__()
        self._embed_model = embed_model
        self._top_n = top_n
        self._sorter = sorter

    @classmethod
    def class_name(cls) -> str:
        """The name LlamaIndex serialises it under."""
        return "RescoringPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        scores = [node.score for node in nodes]
        order = self._sorter.order(self._request(query_bundle), read_texts(nodes), scores)
        return _ordered(nodes, order[: self._top_n])

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        scores = [node.score for node in nodes]
        order = await self._sorter.aorder(self._request(query_bundle), read_texts(nodes), scores)
        return _ordered(nodes, order[: self._top_n])

    def _request(self, query: QueryBundle | None) -> Request:
        """That of the vector that found the nodes, where the bundle has it; else one by what is live now."""
        return self._embed_model.request(text_of(query), getattr(query, "embedding", None))


def _ordered(nodes: list[NodeWithScore], order: Sequence[tuple[int, float | None]]) -> list[NodeWithScore]:
    """The *nodes* in their *order*, scored by relevance where that is known."""
    return [
        nodes[place] if relevance is None else NodeWithScore(node=nodes[place].node, score=relevance)
        for place, relevance in order
    ]


def text_of(query: QueryBundle | str | None) -> Any:
    """The text of a query; what is none is refused, and told, by whoever asks for a text."""
    return getattr(query, "query_str", query)


def read_text(node: NodeWithScore) -> str:
    """The text of a node that was embedded."""
    return node.node.get_content(metadata_mode=MetadataMode.EMBED)


def read_texts(nodes: Sequence[NodeWithScore]) -> list[str]:
    """`read_text` of each node."""
    return [read_text(node) for node in nodes]


def rewarded(nodes: Sequence[NodeWithScore], rewards: Sequence[float]) -> list[NodeWithScore]:
    """New nodes with their rewards as scores, in the order of these; unjudged ones keep place and score."""
    scored = [
        node if math.isnan(reward) else NodeWithScore(node=node.node, score=reward)
        for node, reward in zip(nodes, rewards, strict=True)
    ]
    judged = {place: reward for place, reward in enumerate(rewards) if not math.isnan(reward)}
    return [scored[place] for place in in_reward_order(range(len(nodes)), judged)]
