"""`Learned`: what goes where an embedding model and a reranker were, and learns from what the reranker says."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Self, TypeAlias

import numpy as np

from tttembed_rag.capture.conclusion import Conclusion
from tttembed_rag.capture.rewardlog import RewardLog
from tttembed_rag.capture.textvectors import TextVectors
from tttembed_rag.embedders.specs import as_embedder, open_embedder
from tttembed_rag.errors import InputError, check_count
from tttembed_rag.gate.fit import fit
from tttembed_rag.judges.contract import Judge, Scores, checked_judge, scored
from tttembed_rag.judges.specs import open_judge
from tttembed_rag.judging.plan import Progress, Verdicts
from tttembed_rag.judging.spending import Budget, Price
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.rows import read_votes
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.serving.live import LiveOffsets, OffsetSupplier
from tttembed_rag.serving.log import Log
from tttembed_rag.serving.steering import Steering
from tttembed_rag.serving.tasks import TaskSource, checked_task, resolve_task
from tttembed_rag.system.extensions import of_store
from tttembed_rag.system.failures import FailureLog
from tttembed_rag.system.files import write_whole
from tttembed_rag.system.progress import watched, working
from tttembed_rag.vectors.checks import FloatArray

# A query and its documents to one score each, None where there is none.
Scorer: TypeAlias = Callable[[str, list[str]], Sequence[float | None]]
# A question to the documents that a search finds for it, the best first.
Search: TypeAlias = Callable[[str], Sequence[str]]

_log = logging.getLogger(__name__)
# Queries that are embedded at once, as by the command line: in another batch a vector is another one, by 1e-7, and the
# folds of the gate follow its digits.
_AT_ONCE = 96
# Who vouches.
_BY = "your reranker"
_OFFSETS, _VERDICTS = "offsets.safetensors", "verdicts.jsonl"


class Learned:
    """Your embedding model and your reranker: what stands where they stood, and learns from what the reranker says.

    An index that was built with your model stays as it is. Every list that `reranker` sorts is kept; `learn` makes
    offsets of them, which `embeddings` adds to query vectors from then on. You vouch for the reranker, as you serve its
    order. LangChain, LlamaIndex and Haystack have a `Learned` of their own in their adapters, for their own types.

    Args:
        embeddings: A function from texts to vectors, an `Embedder`, or a spec such as ``minilm``.
        reranker: A function from a query and its documents to scores, a `Judge`, or a spec such as
            ``cross-encoder:PATH`` or ``cohere:rerank-v3.5``.
        scale: What the scores mean where the reranker does not say so: ``probability``, ``logit`` or
            ``rubric:LOW,HIGH``.
        task: The task of every query, or a function from query text to task; None is the caller's `context`.
        k: How many documents of a list are judged by `ask`, >= 1.
        store: The URL of a store whose worker learns for many processes; None learns in this one.
        offsets: What was learned before.

    Attributes:
        embeddings: Stands where your model stood, for queries: a function from texts to vectors.
        reranker: Stands where your reranker stood.
        log: What was asked, shown and said.
        live: What is served.

    Raises:
        InputError: What is given is none of these, or *offsets* were learned for another model.
    """

    def __init__(
        self,
        embeddings: Any,
        reranker: Any,
        *,
        scale: str = "probability",
        task: TaskSource = None,
        k: int = 10,
        store: str | None = None,
        offsets: Offsets | None = None,
    ) -> None:
        check_count("k", k)
        model = open_embedder(embeddings) if isinstance(embeddings, str) else embeddings
        self._embedder = as_embedder(self._embedding(model), name=_named(model))
        self._judge = self._judge_of(reranker, scale)
        self._vectors, self._task, self._k = TextVectors(), checked_task(task), k
        self._failures = FailureLog(_log)
        self._store = store
        self.log: Log = RewardLog.of(self._judge)
        self.live: OffsetSupplier = LiveOffsets(offsets)
        if store is not None:
            brings, options = "a log in a store is a part", {"embedder": self._embedder.fingerprint}
            embed = {"embed_query": self._embed_query, "embed_documents": self._embedder.embed_documents}
            self.log = of_store("log", brings=brings)(store, self._judge, **options, **embed)
            self.live = of_store("follow", brings=brings)(store, **options)
        self.log.declare(_BY)
        self.embeddings = self._wrapped(model)
        self.reranker = self._recorded(reranker)

    @classmethod
    def load(cls, folder: str | Path, embeddings: Any, reranker: Any, **options: Any) -> Self:
        """What `save` wrote to *folder*, for the same model and reranker; options as of the class."""
        saved, verdicts = Path(folder) / _OFFSETS, Path(folder) / _VERDICTS
        learned = cls(embeddings, reranker, offsets=Offsets.load(saved) if saved.exists() else None, **options)
        if not (verdicts.exists() and verdicts.stat().st_size == 0):  # nothing had been judged
            for served in read_votes(verdicts, scale=Scale(), task=""):
                learned._own_log.add(served)
        return learned

    def save(self, folder: str | Path) -> None:
        """Write what is served, and the verdicts, to *folder*; `tttembed eval` takes its file ``verdicts.jsonl``."""
        names = ("query", "document", "reward", "task", "source")
        lines = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in self._own_log.rows()]
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_whole(Path(folder) / _VERDICTS, "".join(lines).encode())
        if isinstance(self.live, LiveOffsets) and self.live.current is not None:
            self.live.current.save(Path(folder) / _OFFSETS)

    def ask(self, questions: Iterable[str], search: Any, *, budget: str = "", price: str = "") -> Verdicts:
        """Search for each of *questions* and have the reranker judge what is found; no pair is judged twice.

        The *search* is a function from a question to documents, or what the adapter of your host takes. A *budget* is
        written as ``pairs=2000,usd=1.50``, the *price* of the reranker as ``request=0.002``.
        """
        caps, cost, every = Budget.parse(budget), Price.parse(price), list(questions)
        log, find = self._own_log, self._searched(search)
        for question in watched(every, len(every), "search"):
            log.observe(question, list(find(question))[: self._k], task=resolve_task(self._task, question))
        with working(log.waiting, "judge") as bar:

            def watch(now: Progress) -> None:
                bar.update(now.pairs - bar.pos)

            return log.score_waiting(self._judge, budget=caps, price=cost, watch=watch)

    def documents(self, texts: Sequence[str]) -> Search:
        """An exact search in *texts* with your model, for `ask`; needs ``tttembed-rag[eval]``."""
        from tttembed_rag.evaluate.index import FaissIndex

        index = FaissIndex.from_vectors(np.array(self._embed_documents(list(texts))))
        return lambda question: [
            texts[row] for row in index.search(self._embed_query(question)[None], self._k)[1][0].tolist()
        ]

    def learn(self) -> Conclusion:
        """Learn from all verdicts, serve what they support, and say so in one sentence.

        Raises:
            RewardError: Nothing was judged.
        """
        log = self._own_log
        vectors, queries = dict[str, FloatArray](), list(dict.fromkeys(query for query, *_ in log.rows()))
        at_once = getattr(self._embedder, "texts_per_call", _AT_ONCE)
        for start in range(0, len(queries), at_once):
            some = queries[start : start + at_once]
            vectors |= zip(some, self._embedder.embed_queries(some), strict=True)
        rewards = log.rewards(
            lambda query: vectors[query] if query in vectors else self._embed_query(query),
            self._embed_documents,
            embedder=self._embedder.fingerprint,
        )
        offsets = fit(rewards)
        if isinstance(self.live, LiveOffsets):
            self.live.publish(offsets)
        return Conclusion.of(offsets)

    # What an adapter says of its host's types

    def _embedding(self, model: Any) -> Any:
        """What embeds as *model* does: an `Embedder`, an object of LangChain or LlamaIndex, or a function."""
        return model

    def _wrapped(self, model: Any) -> Any:
        """What stands where *model* stood."""
        steering = Steering(self.live, self._task, model=self._embedder)
        embed = model if callable(model) else self._embedder.embed_queries

        def embedded(texts: Sequence[str]) -> FloatArray:
            base = np.asarray(embed(list(texts)))
            return np.array(steering.apply_each(base, list(texts)), dtype=base.dtype).reshape(base.shape)

        return embedded

    def _recorded(self, reranker: Any) -> Any:  # noqa: ARG002 - a host's is recorded in its own way
        """What stands where *reranker* stood."""
        return self._scored

    def _scorer(self, reranker: Any) -> Scorer | None:
        """The scores that *reranker* gives; None where it is none of this host."""
        return reranker if callable(reranker) else None

    def _searched(self, search: Any) -> Search:
        """A search of this host as a function."""
        if not callable(search):
            raise InputError(f"search: expected a function from a question to documents, got {type(search).__name__}")
        return search  # type: ignore[no-any-return]

    @property
    def _own_log(self) -> RewardLog:
        if not isinstance(self.log, RewardLog):
            raise InputError("store: expected none: its worker, `tttembed worker`, judges, learns and keeps")
        return self.log

    def _judge_of(self, reranker: Any, scale: str) -> Judge:
        if isinstance(reranker, str):
            return open_judge(reranker)
        scorer = None if hasattr(reranker, "fingerprint") else self._scorer(reranker)
        return checked_judge(reranker) if scorer is None else _Scoring(scorer, _named(reranker), Scale.parse(scale))

    def _scored(self, query: str, documents: Sequence[str]) -> Scores:
        """One score per document, as it came; each goes to the log, which never disturbs the request."""
        scores = scored(self._judge, query, documents)
        try:
            self.log.record(query, documents, scores, task=resolve_task(self._task, query), source="")
        except Exception:  # noqa: BLE001 - whatever it is, it is logged, and the request goes on
            self._failures.exception("scored documents were not recorded")
        return scores

    def _embed_query(self, query: str) -> FloatArray:
        vector: FloatArray = self._embedder.embed_queries([query])[0]
        return vector

    def _embed_documents(self, texts: list[str]) -> list[FloatArray]:
        return list(self._vectors.of(texts, lambda some: list(self._embedder.embed_documents(some))))


class _Scoring:
    """A reranker of the user's own as a judge, one call at a time: most are not made for several threads."""

    def __init__(self, scorer: Scorer, name: str, scale: Scale) -> None:
        self.fingerprint, self.scale = name, scale
        self._scorer, self._lock = scorer, Lock()

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """One score per document, in order."""
        with self._lock:
            return [None if score is None else float(score) for score in self._scorer(query, list(documents))]


def _named(model: Any) -> str:
    """A name for a model or reranker of the user's own: that of its function or class, and of its weights."""
    weights = next((n for n in (getattr(model, a, None) for a in ("model_name", "model")) if isinstance(n, str)), "")
    return " ".join(filter(None, [getattr(model, "__qualname__", type(model).__name__), weights]))
