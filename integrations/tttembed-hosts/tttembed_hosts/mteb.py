"""Offsets under mteb: an encoder with steered query vectors, and a search that judges, fits and searches again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tttembed_hosts.extras import require
from tttembed_rag import Offsets, Rewards, fit
from tttembed_rag.adapting import in_reward_order
from tttembed_rag.errors import InputError, JudgeError, RewardError, check_count
from tttembed_rag.evaluate.index import FaissIndex
from tttembed_rag.judges import Judge, fingerprint_of
from tttembed_rag.judging import Answers, Plan, ScoreCache, judge_all
from tttembed_rag.offsets.offset import AnyScope, check_scope
from tttembed_rag.rewards.observations import Served

__all__ = ["OffsetEncoder", "TwoPassSearch"]

EXTRA = "mteb"


class OffsetEncoder:
    """A model for `mteb.evaluate` that serves *offsets*: queries only, the task's name as task key.

    Where no offset serves a task, and for documents and tasks without queries, its output is the wrapped encoder's own.
    Results and embeddings are cached apart from the bare model's and from those of other offsets.

    Args:
        model: Any encoder of mteb, or a `SentenceTransformer`.
        offsets: Offsets learned with this model.
    """

    def __init__(self, model: Any, offsets: Offsets) -> None:
        self._model = _encoder(model)
        self._offsets = offsets
        self.mteb_model_meta = _renamed(self._model.mteb_model_meta, "offsets", offsets_digest(offsets))

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> Any:
        """The vectors of the wrapped encoder, those of queries with the offset of their task or their own.

        Raises:
            VectorError: A query vector is NaN, infinite, zero or of another width.
            InputError: Query vectors come as integers: offsets are added before they are quantised.
        """
        encoded = self._model.encode(
            inputs,
            task_metadata=task_metadata,
            hf_split=hf_split,
            hf_subset=hf_subset,
            prompt_type=prompt_type,
            **kwargs,
        )
        if prompt_type != "query":
            return encoded
        vectors = _as_array(encoded)
        if vectors.dtype.kind != "f":
            raise InputError(
                f"encode: expected query vectors as floats, got {vectors.dtype}; quantise after the offset"
            )
        steered = self._offsets.apply(vectors, task=task_metadata.name, query_id=_ids(inputs))
        if np.array_equal(steered, vectors):
            return encoded
        if isinstance(encoded, np.ndarray):
            return steered
        return require("torch", EXTRA).as_tensor(steered).to(encoded)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The wrapped encoder's."""
        return self._model.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The wrapped encoder's."""
        return self._model.similarity_pairwise(embeddings1, embeddings2)


class TwoPassSearch:
    """A search for `mteb.evaluate`: retrieve, judge the first documents, fit offsets, retrieve again.

    Vectors are compared by their cosine. Document vectors stay in memory, encoded once.

    Args:
        model: Any encoder of mteb, or a `SentenceTransformer`.
        judge: Scores the first candidates of every query.
        depth: Candidates judged per query.
        scope: Scope of the offsets; ``query`` is private to each query, the other scopes share within the task.
        gate: Whether offsets are served on evidence alone; ``auto`` needs it.
        reorder: Whether judged documents are put in the order of their rewards in the end, among the
            places that they hold; without, the second search alone decides, as in the paper.
        answers: Keeps paid answers; None keeps them in memory.

    Attributes:
        offsets: The offsets of the latest search; None before the first.
    """

    def __init__(
        self,
        model: Any,
        judge: Judge,
        *,
        depth: int = 10,
        scope: AnyScope = "query",
        gate: bool = False,
        reorder: bool = False,
        answers: Answers | None = None,
    ) -> None:
        check_count("depth", depth)
        check_scope(scope)
        if scope == "auto" and not gate:
            raise InputError("gate: expected True with scope='auto' (evidence is what it chooses by), got False")
        self._model = _encoder(model)
        self._judge = judge
        self._depth = depth
        self._scope = scope
        self._gate = gate
        self._reorder = reorder
        self._answers = answers or ScoreCache.open(None)
        self.offsets: Offsets | None = None
        settings = fingerprint_of(
            "twopass", str(scope), judge=judge.fingerprint, depth=depth, gate=gate, reorder=reorder
        )
        self.mteb_model_meta = _renamed(self._model.mteb_model_meta, "twopass", settings.rpartition("@")[2])

    def index(
        self, corpus: Any, *, task_metadata: Any, hf_split: str, hf_subset: str, encode_kwargs: Any, **kwargs: Any
    ) -> None:
        """Encode *corpus* and keep it.

        Args:
            corpus: Documents, as a data set with ids.
            task_metadata: Metadata of the task.
            hf_split: Split of the task.
            hf_subset: Subset of the task.
            encode_kwargs: Keywords for the encoder.
            **kwargs: ``num_proc``, and keywords of later versions of mteb.
        """
        where = {"task_metadata": task_metadata, "hf_split": hf_split, "hf_subset": hf_subset}
        self._documents, self._vectors = self._encode(corpus, "document", where, encode_kwargs, kwargs)
        self._index = FaissIndex.from_vectors(self._vectors)

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: Any,
        top_ranked: Any = None,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Similarity by query id and document id, *top_k* documents per query.

        Args:
            queries: Queries, as a data set with ids.
            task_metadata: Metadata of the task.
            hf_split: Split of the task.
            hf_subset: Subset of the task.
            top_k: Documents per query.
            encode_kwargs: Keywords for the encoder.
            top_ranked: Documents of a task that reranks, which has nothing to search.
            **kwargs: ``num_proc``, and keywords of later versions of mteb.

        Raises:
            InputError: The task reranks given documents.
            JudgeError: The judge broke down before it had judged every candidate.
        """
        if top_ranked is not None:
            raise InputError(f"task: expected one that searches its corpus, got {task_metadata.name}, which reranks")
        where = {"task_metadata": task_metadata, "hf_split": hf_split, "hf_subset": hf_subset}
        texts, vectors = self._encode(queries, "query", where, encode_kwargs, kwargs)
        base = self._index.search(vectors, self._depth + 1)[1]
        rewards = self._judged(task_metadata.name, texts, base)
        steered = self._steered(task_metadata.name, list(texts), vectors, rewards)
        similarities, rows = self._index.search(steered, top_k)
        ids = list(self._documents)
        results = {}
        for query, near, scores in zip(texts, rows.tolist(), similarities.tolist(), strict=True):
            ranked = [ids[row] for row in near]
            if self._reorder:
                ranked = in_reward_order(ranked, rewards.get(query, {}))[: len(ranked)]
            results[query] = dict(zip(ranked, scores, strict=True))
        return results

    def _encode(
        self, dataset: Any, role: str, where: dict[str, Any], encode_kwargs: Any, kwargs: dict[str, Any]
    ) -> tuple[dict[str, str], NDArray[np.floating[Any]]]:
        """Texts by id, as the model reads them, and their vectors (n, d)."""
        prompt_type = require("mteb.types", EXTRA).PromptType(role)
        loader = require("mteb._create_dataloaders", EXTRA).create_dataloader(
            dataset,
            task_metadata=where["task_metadata"],
            prompt_type=prompt_type,
            num_proc=kwargs.get("num_proc"),
            **encode_kwargs,
        )
        encoded = self._model.encode(loader, **where, prompt_type=prompt_type, **encode_kwargs)
        texts = (text for batch in loader for text in batch["text"])
        return dict(zip(map(str, dataset["id"]), texts, strict=True)), _as_array(encoded)

    def _judged(self, task: str, texts: dict[str, str], base: NDArray[np.intp]) -> dict[str, dict[str, float]]:
        """Rewards in [0, 1] by query id and document id, for the rows (m, k) of a first search."""
        documents = list(self._documents.items())
        observations = [
            Served.of_texts(query, text, self._candidates(query, text, [documents[row] for row in rows]), task)
            for (query, text), rows in zip(texts.items(), base.tolist(), strict=True)
        ]
        verdicts = judge_all(Plan(observations, (self._depth,)), self._judge, self._answers)
        if verdicts.stopped:
            raise JudgeError(f"{self._judge.fingerprint}: expected to judge every candidate ({verdicts.stopped})")
        return {query: dict(rewards) for query, rewards in verdicts.rewards.items()}

    def _candidates(self, query: str, text: str, documents: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """The first of *documents*, without the query itself, which some collections hold as a document."""
        return [(key, shown) for key, shown in documents if key != query or text not in shown][: self._depth]

    def _steered(
        self, task: str, queries: list[str], vectors: NDArray[np.floating[Any]], rewards: dict[str, dict[str, float]]
    ) -> NDArray[np.floating[Any]]:
        """Query vectors with the offsets that *rewards* teach; equal rewards of a query teach nothing."""
        row = {document: i for i, document in enumerate(self._documents)}
        informative = [i for i, query in enumerate(queries) if len(set(rewards.get(query, {}).values())) > 1]
        if not informative:
            raise RewardError(f"{task}: expected rewards that differ within a query, got none")
        by_document = [rewards[queries[i]] for i in informative]
        self.offsets = fit(
            Rewards.from_indexed(
                vectors[informative],
                self._vectors,
                [[row[document] for document in judged] for judged in by_document],
                [list(judged.values()) for judged in by_document],
                tasks=[task] * len(informative),
                query_ids=[queries[i] for i in informative],
                judge=self._judge.fingerprint,
            ),
            scope=self._scope,
            gate=self._gate,
        )
        return self.offsets.apply(vectors, task=task, query_id=queries)


def offsets_digest(offsets: Offsets) -> str:
    """A hash of the effect of *offsets* on query vectors, the same for equal offsets of any origin."""
    digest = hashlib.sha256()
    for key in sorted(offsets):
        offset = offsets[key]
        if offset.served and offset.alpha > 0:
            digest.update(json.dumps([key, offset.alpha, str(offset.vector.dtype)]).encode() + offset.vector.tobytes())
        elif offset.scope != "query":  # a task on which the gate abstained is not served the global offset
            digest.update(json.dumps([key, 0]).encode())
    return digest.hexdigest()[:16]


def _encoder(model: Any) -> Any:
    """*model* as an encoder of mteb."""
    models = require("mteb.models", EXTRA)
    if not hasattr(model, "mteb_model_meta") and hasattr(model, "encode_query"):
        model = models.SentenceTransformerEncoderWrapper(model)
    if not isinstance(model, models.EncoderProtocol) or isinstance(model, models.SearchProtocol):
        raise InputError(
            f"model: expected an encoder of mteb (mteb.get_model) or a SentenceTransformer, got {type(model).__name__}"
        )
    return model


def _renamed(meta: Any, what: str, digest: str) -> Any:
    """The metadata of a wrapped model, under which no result or embedding of another is found."""
    experiment = {**(meta.experiment_kwargs or {}), what: digest}
    revision = f"{meta.revision or 'no_revision_available'}+{what}.{digest}"
    return meta.model_copy(update={"revision": revision, "experiment_kwargs": experiment})


def _as_array(encoded: Any) -> NDArray[np.floating[Any]]:
    """Vectors of numpy or torch as an array; bfloat16, which numpy lacks, as float32."""
    if isinstance(encoded, np.ndarray):
        return encoded
    torch = require("torch", EXTRA)
    vectors = torch.as_tensor(encoded).detach().cpu()
    array: NDArray[np.floating[Any]] = (vectors.float() if vectors.dtype == torch.bfloat16 else vectors).numpy()
    return array


def _ids(inputs: Any) -> list[str] | None:
    """Query ids of a data loader; None where its data set has none."""
    dataset = getattr(inputs, "dataset", None)
    names = getattr(dataset, "column_names", None) or ()
    return [str(key) for key in dataset["id"]] if dataset is not None and "id" in names else None
