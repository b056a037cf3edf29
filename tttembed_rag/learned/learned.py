"""`Learned`: what goes where an embedding model and a reranker were, and learns from the one what the other lacks."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Self, TypeAlias

import numpy as np

from tttembed_rag.capture.log import Log
from tttembed_rag.capture.rewardlog import RewardLog
from tttembed_rag.capture.textvectors import TextVectors
from tttembed_rag.embedders.contract import Embedder
from tttembed_rag.errors import InputError, RewardError, check_count
from tttembed_rag.gate.deciding import fit
from tttembed_rag.judges.contract import Blocking, Judge, Scores, checked_judge, scored
from tttembed_rag.judging.plan import Progress, Verdicts
from tttembed_rag.judging.spending import Budget, Price
from tttembed_rag.learned.lesson import Lesson
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.rewards.rows import read_votes
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.serving.live import LiveOffsets, OffsetSupplier
from tttembed_rag.serving.saved import steered_each
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
# From so many questions that somebody asked on, written ones count no more.
ASKED = 16
_OFFSETS, _VERDICTS = "offsets.safetensors", "verdicts.jsonl"


class Learned:
    """Your embedding model and your reranker: what stands where they stood, and learns from what the reranker says.

    An index that was built with your model stays as it is. Every list that `reranker` sorts is kept; `learn` makes
    offsets of them, which `embeddings` adds to query vectors from then on. You vouch for the reranker, as you serve its
    order. The adapters have a `Learned` of their own, for the types of LangChain, LlamaIndex and Haystack.

    Args:
        embeddings: A function from texts to vectors, an `Embedder`, or a spec such as ``minilm``.
        reranker: A function from a query and its documents to scores, a `Judge`, or a spec such as
            ``cross-encoder:PATH`` or ``cohere:rerank-v3.5``.
        scale: What the scores of a reranker mean that does not say so: ``probability``, ``logit`` or
            ``rubric:LOW,HIGH``.
        name: The reranker's name, where it does not say so: verdicts of two rerankers do not mix.
        task: The task of every query, or a function from query text to task; None is the caller's `context`.
        k: How many documents of a list are judged, >= 1.
        store: The URL of a store that all processes share; None keeps everything in this one.
        offsets: What was learned before; None before anything was.

    Attributes:
        embeddings: Stands where your model stood, for queries and documents: queries get their offset.
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
        name: str = "",
        task: TaskSource = None,
        k: int = 10,
        store: str | None = None,
        offsets: Offsets | None = None,
    ) -> None:
        from tttembed_rag.embedders.specs import as_embedder, open_embedder

        check_count("k", k)
        model = open_embedder(embeddings) if isinstance(embeddings, str) else embeddings
        self._embedder: Embedder = as_embedder(self._callable_model(model), name=_named(model))
        self._vectors, self._task, self._k = TextVectors(), checked_task(task), k
        self._judge = self._judge_of(reranker, name, Scale.parse(scale))
        self._store = store
        # Questions that were written, and asked by nobody, are kept apart from those that were.
        self._written = RewardLog.of(self._judge)
        self.log: Log = RewardLog.of(self._judge)
        self.live: OffsetSupplier = LiveOffsets(offsets)
        if store is not None:
            embed = {"embed_query": self._embed_query, "embed_documents": self._embedder.embed_documents}
            brings, name_of_model = "a store is a part", self._embedder.fingerprint
            self.log = of_store("log", brings=brings)(store, self._judge, embedder=name_of_model, **embed)
            self.live = of_store("follow", brings=brings)(store, embedder=name_of_model)
        for log in (self.log, self._written):
            log.declare()
        self.embeddings = self._wrapped(model)
        self.reranker = self._recorded(reranker)

    @classmethod
    def load(cls, folder: str | Path, embeddings: Any, reranker: Any, **options: Any) -> Self:
        """What `save` wrote to *folder*, for the same model and reranker; options as of the class."""
        offsets = Path(folder) / _OFFSETS
        learned = cls(embeddings, reranker, offsets=Offsets.load(offsets) if offsets.exists() else None, **options)
        for served in read_votes(Path(folder) / _VERDICTS, scale=Scale(), task=""):
            learned._rewards_log.add(served)
        return learned

    def save(self, folder: str | Path) -> None:
        """Write what is served, and the verdicts, to *folder*; `tttembed eval` takes its file ``verdicts.jsonl``."""
        names = ("query", "document", "reward", "task", "source")
        lines = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in self._rewards_log.rows()]
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_whole(Path(folder) / _VERDICTS, "".join(lines).encode())
        if isinstance(self.live, LiveOffsets) and self.live.current is not None:
            self.live.current.save(Path(folder) / _OFFSETS)

    def ask(
        self,
        questions: Iterable[str],
        search: Any,
        *,
        budget: Budget | str = "",
        price: Price | str = "",
    ) -> Verdicts:
        """Search for each of *questions* and have the reranker judge what is found; no pair is judged twice.

        Args:
            questions: Questions as your users ask them.
            search: Your search: a function from a question to documents, or what the adapter of your host takes.
            budget: Caps, as ``pairs=2000,usd=1.50``; empty for none.
            price: What the reranker costs, as ``request=0.002``.
        """
        return self._asked(self._rewards_log, questions, self._searched(search), budget, price)

    def ask_documents(
        self,
        texts: Sequence[str],
        n: int = 100,
        *,
        writer: Any = None,
        budget: Budget | str = "",
        price: Price | str = "",
    ) -> Verdicts:
        """The same with *n* questions made of *texts*, where nobody has asked any yet, by an exact search in *texts*.

        Nobody asked them, so nothing of them is served before ``learn(written=True)`` says so.

        Args:
            texts: Your documents.
            n: How many questions, each from another document.
            writer: A function from prompt to answer, or the spec of a chat model such as ``openai:MODEL``; it must not
                use the rarest words of a document. None takes titles and headings.
            budget: As of `ask`, of the judging.
            price: As of `ask`.
        """
        from tttembed_rag.learned.writing import written_questions

        questions = written_questions(texts, n, writer)
        return self._asked(self._written, questions, self.documents(texts), budget, price)

    def documents(self, texts: Sequence[str]) -> Search:
        """An exact search in *texts* with your model, for `ask`; needs ``tttembed-rag[eval]``."""
        from tttembed_rag.evaluate.index import FaissIndex

        index = FaissIndex.from_vectors(self._embed_documents(list(texts)))
        return lambda question: [
            texts[row] for row in index.search(self._embed_query(question)[None], self._k)[1][0].tolist()
        ]

    def learn(self, *, written: bool = False) -> Lesson:
        """Learn from all verdicts, serve what they support, and say so in one sentence.

        Args:
            written: Whether what written questions teach may be served, while fewer than 16 others were judged; from
                then on they are dropped.

        Raises:
            RewardError: Nothing was judged.
        """
        if self._store is not None:
            learn = of_store("learn", brings="learning from a store is a part")
            return Lesson.of(learn(self._store, self.log, self._embedder.fingerprint))
        rows, own = self._rewards_log.rows(), self._written.rows()
        of_written = bool(own) and len({(task, query) for query, _, _, task, _ in rows}) < ASKED
        if of_written:
            rows = [*own, *rows]
        if not rows:
            waiting = f"{len(self._rewards_log)} questions wait"
            hint = "scores that are no probabilities need scale='logit'"
            raise RewardError(f"learn: expected judged documents, got none ({waiting}): use .reranker, or ask; {hint}")
        rewards = Rewards.from_texts(
            rows,
            embed_query=self._embed_query,
            embed_documents=self._embed_documents,
            judge=self._judge.fingerprint,
            embedder=self._embedder.fingerprint,
        )
        offsets = fit(rewards, trusted=self.log.trusted)
        withheld = of_written and not written
        if not withheld and isinstance(self.live, LiveOffsets):
            self.live.publish(offsets)
        return Lesson.of(offsets, written=of_written, withheld=withheld)

    # What an adapter says of its host

    def _callable_model(self, model: Any) -> Any:
        """What embeds as *model* does: an `Embedder`, or what `open_embedder` takes by ``python:MODULE:NAME``."""
        return model

    def _wrapped(self, model: Any) -> Any:
        """What stands where *model* stood."""
        steering = Steering(self.live, self._task, model=self._embedder)
        return SteeredModel(model if callable(model) else self._embedder.embed_queries, self._embedder, steering)

    def _recorded(self, reranker: Any) -> Any:  # noqa: ARG002 - hosts wrap theirs
        """What stands where *reranker* stood."""
        return RecordedScores(self._judge, self.log, self._task)

    def _scorer(self, reranker: Any) -> Scorer | None:
        """The scores that *reranker* gives; None where it is none of this host."""
        return reranker if callable(reranker) else None

    def _searched(self, search: Any) -> Search:
        """A search of this host as a function."""
        if not callable(search):
            raise InputError(f"search: expected a function from a question to documents, got {type(search).__name__}")
        return search  # type: ignore[no-any-return]

    @property
    def _rewards_log(self) -> RewardLog:
        if not isinstance(self.log, RewardLog):
            raise InputError("store: expected none here: its worker judges, learns and keeps")
        return self.log

    def _judge_of(self, reranker: Any, name: str, scale: Scale) -> Judge:
        if isinstance(reranker, str):
            from tttembed_rag.judges.specs import open_judge

            return open_judge(reranker)
        scorer = None if hasattr(reranker, "ascore") else self._scorer(reranker)
        if scorer is None:
            return checked_judge(reranker)  # type: ignore[no-any-return]
        return _Scoring(scorer, name or _named(reranker), scale)

    def _asked(
        self, log: RewardLog, questions: Iterable[str], search: Search, budget: Budget | str, price: Price | str
    ) -> Verdicts:
        budget = Budget.parse(budget) if isinstance(budget, str) else budget
        price = Price.parse(price) if isinstance(price, str) else price
        every = list(questions)
        for question in watched(every, len(every), "search"):
            log.observe(question, list(search(question))[: self._k], task=resolve_task(self._task, question))
        with working(log.waiting, "judge") as bar:

            def watch(now: Progress) -> None:
                bar.update(now.pairs - bar.pos)

            return log.score_waiting(self._judge, budget=budget, price=price, watch=watch)

    def _embed_query(self, query: str) -> FloatArray:
        vector: FloatArray = self._embedder.embed_queries([query])[0]
        return vector

    def _embed_documents(self, texts: list[str]) -> FloatArray:
        return self._vectors.of(texts, lambda some: list(self._embedder.embed_documents(some)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._embedder.fingerprint}, {self._judge.fingerprint}, {self.log!r})"


class SteeredModel:
    """Vectors of queries with what was learned; those of documents as they were."""

    def __init__(self, embed: Callable[[list[str]], Any], embedder: Embedder, steering: Steering) -> None:
        self._embed, self._embedder, self._steering = embed, embedder, steering
        self.fingerprint = embedder.fingerprint
        self.embed_documents = embedder.embed_documents

    def __call__(self, texts: Sequence[str]) -> FloatArray:
        """Vectors (len(texts), d) of queries, each with its offset, of the norm that the model gives."""
        return np.array(steered_each(self._steering, np.asarray(self._embed(list(texts))), list(texts)))

    embed_queries = __call__

    def task_of(self, query: str) -> str | None:
        """The task that gives *query* its offset; None where no task is named."""
        return self._steering.task_of(query)


class RecordedScores:
    """The scores of a judge for the documents of a query; each goes to the log, which never disturbs the request."""

    def __init__(self, judge: Judge, log: Log, task: TaskSource) -> None:
        self._judge, self._log, self._task = judge, log, task
        self._failures = FailureLog(_log)

    def __call__(self, query: str, documents: Sequence[str]) -> Scores:
        """One score per document, as it came."""
        scores = scored(self._judge, query, documents)
        try:
            self._log.record(query, documents, scores, task=resolve_task(self._task, query), source="")
        except Exception:  # noqa: BLE001 - whatever it is, it is logged, and the request goes on
            self._failures.exception("scored documents were not recorded")
        return scores


class _Scoring(Blocking):
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
