"""A ranker that asks no model, or another ranker where need be: what it knows was learned from that one's verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict, logging
from haystack.core.serialization import component_to_dict
from haystack.utils import deserialize_component_inplace
from tttembed_store import StoreLog

from tttembed_rag import InputError, Scale, Steering, context
from tttembed_rag.adapting import Sorter, checked_store, steering_of, url_of
from tttembed_rag.errors import check_count
from tttembed_rag.serving import Cascade

__all__ = ["TTTRanker"]

logger = logging.getLogger(__name__)


@component
class TTTRanker:
    """Documents sorted by similarity and by the words that they share with the query, as verdicts weigh them.

    It stands behind a retriever that finds 20 to 100 documents with the vector of a `TTTTextEmbedder` of the same
    store, with cosine similarities as scores. Where no rescorer is published for the task, they stay as they came.

    Args:
        store: Where it comes from: the URL of a store, ``env:NAME`` for a URL in a variable, or an offsets file.
        top_k: Documents kept, >= 1.
        task: The task of queries whose run names none; None is the caller's ``with tttembed_rag.context(...)``.
        tenant: Whose is used; None is the caller's.
        fingerprint: That of the embedding model, as in `TTTTextEmbedder`.
        ranker: A ranker that is asked about the contents of the first ten documents, where its answer may change the
            list: see `tttembed_rag.serving.Cascade`. It returns ten documents at least. None asks none.
        judge: The ranker's name, by which its verdicts are kept, as in `TTTRecorder`, where *store* is a database.
        scale: What its scores mean: ``probability``, ``logit``, or ``rubric:LOW,HIGH``.
        floor: Share of requests that may lose an answer, such as .05. Then there is no document where nothing fits, and
            the scores of the others are how likely they are relevant: see `Offsets.floor`. None changes no score.

    Raises:
        InputError: *store* may not be saved, *top_k* is below 1, *ranker* is none or has no name, there is no such
            scale, or *floor* is no share.
    """

    def __init__(
        self,
        *,
        store: str,
        top_k: int = 10,
        task: str | None = None,
        tenant: str | None = None,
        fingerprint: str = "",
        ranker: Any = None,
        judge: str = "",
        scale: str = "probability",
        floor: float | None = None,
    ) -> None:
        check_count("top_k", top_k)
        if (ranker is None) != (not judge):
            raise InputError(
                f"ranker, judge: expected a ranker and its name, or neither, got {ranker!r:.80}, {judge!r}"
            )
        if ranker is not None and (isinstance(ranker, type) or not hasattr(ranker, "run")):
            raise InputError(f"ranker: expected a ranker of Haystack, with run, got {ranker!r:.80}")
        self._sorter = Sorter(floor=floor)
        self._judge = None if ranker is None else Ranking(ranker, judge, scale)
        self.ranker = ranker
        self.judge = judge
        self.scale = scale
        self.floor = floor
        self.store = checked_store(store)
        self.top_k = top_k
        self.task = task
        self.tenant = tenant
        self.fingerprint = fingerprint
        self._steering: Steering | None = None

    def warm_up(self) -> None:
        """Load the ranker, and read what was learned; a StoreError where the file of a store is not there."""
        if (warm_up := getattr(self.ranker, "warm_up", None)) is not None:
            warm_up()
        self._ready()

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        documents: list[Document],
        task: str | None = None,
        tenant: str | None = None,
        top_k: int | None = None,
    ) -> dict[str, Any]:
        """The *documents*, sorted and cut; their scores are changed with a *floor* alone.

        Args:
            query: Its text.
            documents: In the retriever's order, with its scores.
            task: Its task; None is that of the component.
            tenant: Whose it is; None is that of the component.
            top_k: Documents kept; None is that of the component.
        """
        steering = self._ready()
        if top_k is not None:
            check_count("top_k", top_k)
        with context(task=self.task if task is None else task, tenant=self.tenant if tenant is None else tenant):
            request = steering.request(query)
            texts, scores = [doc.content or "" for doc in documents], [doc.score for doc in documents]
            order = self._sorter.order(request, texts, scores)[: top_k or self.top_k]
        pairs = [(documents[place], relevance) for place, relevance in order]
        return {"documents": [doc if score is None else replace(doc, score=score) for doc, score in pairs]}

    def to_dict(self) -> dict[str, Any]:
        """What a saved pipeline keeps."""
        names = ("store", "top_k", "task", "tenant", "fingerprint", "judge", "scale", "floor")
        settings = {name: getattr(self, name) for name in names}
        ranker = None if self.ranker is None else component_to_dict(self.ranker, "ranker")
        kept: dict[str, Any] = default_to_dict(self, **settings, ranker=ranker)
        return kept

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TTTRanker:
        """The component that `to_dict` described."""
        if data["init_parameters"].get("ranker"):
            deserialize_component_inplace(data["init_parameters"], "ranker")
        made: TTTRanker = default_from_dict(cls, data)
        return made

    def _ready(self) -> Steering:
        """What knows how lists are sorted, with the cascade made where there is a ranker."""
        if self._steering is None:
            steering = steering_of(self.store, tenant=self.tenant, embedder=self.fingerprint)
            if self._judge is not None:
                url, log = url_of(self.store), None
                if "://" in url:
                    log = StoreLog(url, self.judge, scale=self.scale, embedder=self.fingerprint)
                self._sorter = Sorter(Cascade(self._judge, log=log), self.floor)
            self._steering = steering
        return self._steering


class Ranking:
    """A ranker as a judge: the scores that it gives documents of these contents."""

    def __init__(self, ranker: Any, name: str, scale: str) -> None:
        self.fingerprint = name
        self.scale = Scale.parse(scale)
        self._ranker = ranker
        self._warned = False

    def score(self, query: str, documents: Sequence[str]) -> list[float | None]:
        """One score per document; None for one that the ranker left out."""
        shown = [Document(id=str(place), content=text) for place, text in enumerate(documents)]
        whole = {"top_k": len(shown)} if "top_k" in signature(self._ranker.run).parameters else {}
        scores = {doc.id: doc.score for doc in self._ranker.run(query=query, documents=shown, **whole)["documents"]}
        if 0 < len(scores) < len(shown) and not self._warned:
            self._warned = True
            logger.warning(
                "ranker: expected {shown} documents, got {got}: raise its top_k", shown=len(shown), got=len(scores)
            )
        return [scores.get(doc.id) for doc in shown]
