"""What callers of tools gain that call for themselves: parts of `poison.py` about `LearnedToolSearch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Self, TypeAlias

import numpy as np
from ground import PER_USER, Ground
from tttembed_tools import LearnedToolSearch
from tttembed_tools.learned import LAST

Grounds: TypeAlias = Callable[..., Iterator[tuple[str, Ground]]]
# Requests of honest users before a flood, and calls of the flood; rounds of a tool that calls itself.
HONEST, FLOOD, ROUNDS = 300, 2000, 8


class Stored:
    """The vectors of a collection as an embedding model; what stands below its line says nothing."""

    fingerprint = "stored"

    def __init__(self, ground: Ground) -> None:
        queries = ground.bench.collection.dataset.queries.values()
        self._queries = dict(zip(queries, ground.unit.astype(np.float32), strict=True))
        self._documents = ground.bench.unit_docs.astype(np.float32)

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        """The stored vectors of queries."""
        return np.stack([self._queries[text.partition("\n")[0]] for text in texts])

    def embed_documents(self, texts: Sequence[str]) -> np.ndarray:
        """The stored vectors of all documents, which are embedded once, in their order."""
        return self._documents[: len(texts)]


@dataclass(frozen=True)
class Agents:
    """A search over the documents of a collection as tools, and what its queries want.

    Attributes:
        texts: The text of each query, by its row.
    """

    ground: Ground
    search: LearnedToolSearch
    texts: list[str]

    @classmethod
    def of(cls, ground: Ground) -> Self:
        """The agents of one collection."""
        dataset = ground.bench.collection.dataset
        catalog = [
            {"name": f"t{row}", "description": text or "-"} for row, text in enumerate(dataset.documents.values())
        ]
        return cls(ground, LearnedToolSearch(catalog, Stored(ground), last=LAST), list(dataset.queries.values()))

    def wanted(self, query: int) -> set[str]:
        """The tools that serve a query."""
        collection = self.ground.bench.collection
        labels = collection.dataset.qrels.get(str(collection.query_ids[query]), {})
        rows = np.flatnonzero(np.isin(collection.doc_ids, [name for name, label in labels.items() if label]))
        return {f"t{row}" for row in rows.tolist()}

    def use(self, query: int, tools: set[str], source: str | None, words: str = "") -> None:
        """Call some tools for a query, with *words* on a line below; all of them work."""
        for tool in sorted(tools):
            self.search.used(f"{self.texts[query]}\n{words}", tool, source=source)

    def found(self, query: int) -> set[str]:
        """The first five tools of a query."""
        return set(self.search(self.texts[query], 5))

    def recall(self) -> float:
        """Recall@5 of other people's queries."""
        wanted = {query: right for query in self.ground.held.tolist() if (right := self.wanted(query))}
        return float(np.mean([len(right & self.found(query)) / len(right) for query, right in wanted.items()]))


def flood(grounds: Grounds) -> Iterator[dict[str, Any]]:
    """Accounts call a tool of chance two thousand times: are the calls of honest users still learned from?"""
    for (name, ground), accounts in product(grounds(), (0, 1, 30)):
        agents, rng = Agents.of(ground), np.random.default_rng(ground.seed)
        raw = agents.recall()
        for i, query in enumerate(ground.pool[:HONEST].tolist()):
            agents.use(query, agents.wanted(query), f"user {i // PER_USER}")
        for i in range(FLOOD if accounts else 0):
            tool = f"t{rng.integers(len(ground.bench.unit_docs))}"
            agents.use(int(rng.choice(ground.pool[HONEST:])), {tool}, f"attacker {i % accounts}", f"the {i}th")
        lesson = agents.search.learn()
        yield {
            "collection": name,
            "accounts": accounts,
            "requests": lesson.requests,
            "served": float(lesson.moves),
            "recall@5 raw": raw,
            "recall@5": agents.recall(),
        }


def selfcall(grounds: Grounds) -> Iterator[dict[str, Any]]:
    """A tool is called wherever it is listed, and says that it worked, beside honest calls; with or without a name."""
    for (name, ground), (named, greedy) in product(grounds(), product((False, True), (False, True))):
        for target in ground.targets(1):
            agents, rng, tool = Agents.of(ground), np.random.default_rng(ground.seed), f"t{target}"
            strangers = ground.strangers(target).tolist()
            listed, raw = [], agents.recall()
            for turn in range(ROUNDS + 1):
                listed.append(float(np.mean([tool in agents.found(query) for query in strangers])))
                for i, query in enumerate(rng.choice(ground.pool, 60).tolist() if turn < ROUNDS else ()):
                    itself = {tool} & agents.found(query) if greedy else set()
                    agents.use(query, agents.wanted(query) | itself, f"user {turn} {i // PER_USER}" if named else None)
                agents.search.learn()
            yield {
                "collection": name,
                "named": named,
                "calls itself": greedy,
                "listed raw": listed[0],
                "listed most": max(listed),
                "listed": listed[-1],
                "recall@5 raw": raw,
                "recall@5": agents.recall(),
            }


def selfhelp(grounds: Grounds) -> Iterator[dict[str, Any]]:
    """An agent says of its own memory that it helped, wherever it is recalled, beside five honest agents of a user."""
    for (name, ground), greedy in product(grounds(), (False, True)):
        for target in ground.targets(1):
            agents, rng, own = Agents.of(ground), np.random.default_rng(ground.seed), f"t{target}"
            shown, helped = np.zeros(len(ground.bench.unit_docs)), np.zeros(len(ground.bench.unit_docs))
            strangers = ground.strangers(target).tolist()

            def listed(scores: np.ndarray, target: int = target) -> float:
                return float(np.mean([target in np.argsort(-row)[:5] for row in scores]))

            similar = ground.unit[strangers] @ ground.bench.unit_docs.T
            raw = float(np.mean([own in agents.found(query) for query in strangers]))
            for i in range(ROUNDS):
                for query in rng.choice(ground.pool, 60).tolist():
                    found, wanted = agents.found(query), agents.wanted(query)
                    shown[[int(tool[1:]) for tool in found]] += 1
                    said = wanted | ({own} & found if greedy else set())
                    helped[[int(tool[1:]) for tool in said & found]] += 1
                    agents.use(query, wanted, f"agent {query % 5}", f"round {i}")
                    agents.use(query, said - wanted, "the writer", f"round {i}")
                agents.search.learn()
            yield {
                "collection": name,
                "credits itself": greedy,
                "listed raw": raw,
                "similarity": listed(similar),
                "counters": listed(similar + 0.05 * helped - 0.03 * (shown - helped)),
                "success prior": listed(similar * (1 + helped) / (2 + shown)),
                "listed": float(np.mean([own in agents.found(query) for query in strangers])),
            }


PARTS = {"flood": flood, "selfcall": selfcall, "selfhelp": selfhelp}
# By what the rows of a part are put together, and what is shown of them.
GROUPS = {"flood": ("accounts",), "selfcall": ("named", "calls itself"), "selfhelp": ("credits itself",)}
