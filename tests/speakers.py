"""A small world of several languages, in which a query's own language fills its list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tttembed_rag import Offsets, Rewards
from tttembed_rag.serving import language_means

DEPTH = 10


@dataclass(frozen=True)
class Speakers:
    """Document n answers question n, in each language, by rows."""

    languages: tuple[str, ...]
    queries: Mapping[str, np.ndarray]
    documents: np.ndarray
    spoken: np.ndarray

    @classmethod
    def of(cls, languages: tuple[str, ...], *, count: int = 60, width: int = 48, seed: int = 0) -> Speakers:
        """*count* questions and answers in each of the *languages*, whose directions outweigh what is meant."""
        draw = np.random.default_rng(seed)
        direction = {name: 0.8 * draw.standard_normal(width) / np.sqrt(width) for name in languages}
        meant = draw.standard_normal((count, width)) / np.sqrt(width)

        def spoken_rows(name: str, noise: float) -> np.ndarray:
            rows = meant + direction[name] + noise * draw.standard_normal((count, width)) / np.sqrt(width)
            return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

        documents = np.concatenate([spoken_rows(name, 0.6) for name in languages])
        return cls(
            languages, {name: spoken_rows(name, 0.9) for name in languages}, documents, np.repeat(languages, count)
        )

    @property
    def width(self) -> int:
        """Of the vectors."""
        return self.documents.shape[1]

    @property
    def count(self) -> int:
        """Of the questions."""
        return len(self.documents) // len(self.languages)

    def means(self, questions: Iterable[int] | None = None) -> Offsets:
        """Offsets of the languages' means, by the queries of these *questions*, or by documents alone."""
        if questions is None:
            return language_means(self.documents, self.spoken.tolist())
        rows = list(questions)
        queries = np.concatenate([self.queries[name][rows] for name in self.languages])
        return language_means(
            self.documents, self.spoken.tolist(), queries, np.repeat(self.languages, len(rows)).tolist()
        )

    def lists(self, offsets: Offsets | None, questions: Iterable[int]) -> dict[str, np.ndarray]:
        """By language the lists (n, 10) of the *questions*, under *offsets*."""
        rows, lists = list(questions), {}
        for name in self.languages:
            vectors = self.queries[name][rows]
            vectors = vectors if offsets is None else offsets.apply(vectors, task=name)
            lists[name] = np.argsort(-(vectors @ self.documents.T), axis=1, kind="stable")[:, :DEPTH]
        return lists

    def own(self, lists: Mapping[str, np.ndarray]) -> float:
        """The part of *lists* that has the language of the question."""
        return float(np.mean([(self.spoken[listed] == name).mean() for name, listed in lists.items()]))

    def recall(self, lists: Mapping[str, np.ndarray], questions: Iterable[int]) -> float:
        """The part of the answers that is in the *lists* of the *questions*."""
        answers = np.array(list(questions))[:, None]
        return float(
            np.mean([(listed % self.count == answers).sum(axis=1) / len(self.languages) for listed in lists.values()])
        )

    def rewards(self, offsets: Offsets | None, questions: Iterable[int], *, own: bool | None = None) -> Rewards:
        """What users say of the lists under *offsets*: what answers is good, in their *own* language or in others."""
        rows, columns = list(questions), []
        for name, lists in self.lists(offsets, rows).items():
            for row, listed in zip(rows, lists, strict=True):
                good = (listed % self.count == row) & (own is None or (self.spoken[listed] == name) == own)
                partly = 0.0 if own is None else 0.3 * ((self.spoken[listed] == name) == own)
                columns.append((name, f"{name}:{row}", self.queries[name][row], listed, np.maximum(good, partly)))
        tasks, ids, queries, candidates, values = zip(*columns, strict=True)
        return Rewards.from_indexed(np.array(queries), self.documents, candidates, values, tasks, ids, judge="users")
