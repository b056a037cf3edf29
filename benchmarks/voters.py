"""What accounts gain that vote for themselves: parts of `poison.py`, each a strategy that knows the gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from ground import PER_USER, Ground

from tttembed_rag import Offsets, Rewards, fit

Grounds: TypeAlias = Callable[..., Iterator[tuple[str, Ground]]]
# Queries that honest users rewarded, before the strategy begins.
HONEST = 200


@dataclass(frozen=True)
class Ballot:
    """What one source says of the documents that one query was shown.

    Attributes:
        query: Row of the query.
        shown: (k,) rows of documents.
        values: (k,) rewards.
    """

    source: str
    query: int
    shown: np.ndarray
    values: np.ndarray


def honest(ground: Ground, query: int, source: str) -> Ballot:
    """The labels of the first ten, with a little noise."""
    collection = ground.bench.collection
    shown = collection.base[query][:10]
    labels = collection.dataset.qrels.get(str(collection.query_ids[query]), {})
    values = np.array([labels.get(str(collection.doc_ids[d]), 0) for d in shown.tolist()]) / collection.scale.high
    noise = 0.05 * np.random.default_rng([query, *source.encode()]).standard_normal(len(shown))
    return Ballot(source, query, shown, np.clip(values + noise, 0, 1))


def users(ground: Ground, count: int = HONEST) -> list[Ballot]:
    """The ballots of honest users, `PER_USER` queries each."""
    return [honest(ground, q, f"user {i // PER_USER}") for i, q in enumerate(ground.pool[:count].tolist())]


def lie(ground: Ground, query: int, source: str, target: int, best: float = 1.0, rest: float = 0.0) -> Ballot:
    """A vote of *best* for the target, which is shown, 1 for the first other one if that is more, *rest* for others."""
    found = ground.bench.collection.base[query][:10]
    shown = found if target in found else np.append(found[:-1], target)
    values = np.full(len(shown), rest)
    values[0] = 1.0 if best < 1 else rest
    values[shown == target] = best
    return Ballot(source, query, shown, values)


def counted(ground: Ground, ballots: Sequence[Ballot]) -> Rewards:
    """The ballots as rewards; a query has one row for each of its sources."""
    collection = ground.bench.collection
    rows = [ballot.query for ballot in ballots]
    return Rewards.from_indexed(
        collection.query_vectors[rows],
        collection.doc_vectors,
        [ballot.shown for ballot in ballots],
        [ballot.values for ballot in ballots],
        [collection.dataset.name] * len(rows),
        collection.query_ids[rows].tolist(),
        sources=[ballot.source for ballot in ballots],
        doc_ids=collection.doc_ids.tolist(),
    )


def places(ground: Ground, offsets: Offsets | None, queries: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(n,) place of one target in the list of each query, from 0 on, with what is served to these very queries."""
    moved = ground.unit[queries]
    if offsets is not None:
        collection = ground.bench.collection
        moved = offsets.apply(moved, task=collection.dataset.name, query_id=collection.query_ids[queries].tolist())
    scores = moved @ ground.bench.unit_docs.T
    return np.asarray((scores > np.take_along_axis(scores, targets[:, None], axis=1)).sum(axis=1))


def takeover(grounds: Grounds) -> Iterator[dict[str, Any]]:
    """Accounts vote for a document that honest users of the same queries were never shown (absent votes)."""
    for (name, ground), accounts, friends in product(grounds(), (2, 5), (0, 1, 2, 4, 8)):
        rng = np.random.default_rng(ground.seed)
        asked = ground.pool[HONEST : HONEST + 16]
        ranked = ground.bench.collection.base[asked]
        targets = ranked[np.arange(len(asked)), rng.integers(10, 30, len(asked))]
        ballots = users(ground)
        for query, target in zip(asked.tolist(), targets.tolist(), strict=True):
            ballots += [lie(ground, query, f"attacker {i}", target) for i in range(accounts)]
            ballots += [honest(ground, query, f"friend {i}") for i in range(friends)]
        found = fit(counted(ground, ballots))
        reached = places(ground, found, asked, targets)
        yield {
            "collection": name,
            "accounts": accounts,
            "honest users": friends,
            "first": float((reached == 0).mean()),
            "first three": float((reached < 3).mean()),
            "nDCG raw": float(ground.bench.ndcg(asked, 0.0).mean()),
            "nDCG": float(ground.bench.under(found, asked).mean()),
        }


def second(grounds: Grounds) -> Iterator[dict[str, Any]]:
    """Two accounts vote for one document on many queries, as the best or as the second best of each."""
    for (name, ground), count, best in product(grounds(), (20, 80), (1.0, 0.97)):
        asked = ground.pool[HONEST : HONEST + count]
        for target in ground.targets(2):
            lies = [lie(ground, query, f"attacker {i}", target, best) for query in asked.tolist() for i in range(2)]
            found = fit(counted(ground, [*users(ground), *lies]))
            raw, now = (
                (places(ground, offsets, asked, np.full(len(asked), target)) < 3).mean() for offsets in (None, found)
            )
            yield {
                "collection": name,
                "queries": count,
                "said": best,
                "first three raw": float(raw),
                "first three": float(now),
                "exposure raw": ground.exposure(None, target),
                "exposure": ground.exposure(found, target),
                "change": ground.change(found),
            }


def demotion(grounds: Grounds) -> Iterator[dict[str, Any]]:
    """Accounts with one vote each say that a document which many queries want is bad."""
    for name, ground in grounds():
        bench, before = ground.bench, fit(counted(ground, users(ground)))
        for target, accounts in product(wanted_most(ground, 2), (5, 20, 60)):
            rng = np.random.default_rng(ground.seed)
            listed = [q for q in ground.pool[HONEST:].tolist() if target in bench.collection.base[q][:10]]
            asked = rng.choice(listed, accounts).tolist()
            lies = [smear(ground, q, f"attacker {i}", target) for i, q in enumerate(asked)]
            # The same accounts, who say of the target what they say of all others.
            same = [smear(ground, q, f"attacker {i}", -1) for i, q in enumerate(asked)]
            control, after = (fit(counted(ground, [*users(ground), *told])) for told in (same, lies))
            own = np.setdiff1d(ground.held, ground.strangers(target))
            clean, alike, now = (float(bench.under(offsets, own).mean()) for offsets in (before, control, after))
            yield {
                "collection": name,
                "accounts": accounts,
                "first three clean": float((ground.places(before, target, own) < 3).mean()),
                "first three": float((ground.places(after, target, own) < 3).mean()),
                "nDCG raw": float(bench.ndcg(own, 0.0).mean()),
                "nDCG clean": clean,
                "nDCG without the 0": alike,
                "nDCG": now,
                "cost": alike - now,
            }


def wanted_most(ground: Ground, count: int) -> list[int]:
    """The documents that most of other people's queries want."""
    collection = ground.bench.collection
    serves = Counter(
        name
        for query in collection.query_ids[ground.held].tolist()
        for name, label in collection.dataset.qrels.get(query, {}).items()
        if label
    )
    rows = {name: row for row, name in enumerate(collection.doc_ids.tolist())}
    return [rows[name] for name, _ in serves.most_common() if name in rows][:count]


def smear(ground: Ground, query: int, source: str, target: int) -> Ballot:
    """A vote that is honest to look at, but for the target, if it is a document: 0."""
    told = honest(ground, query, source)
    values = np.where(told.values > 0.5, 0.9, 0.3)
    return replace(told, values=np.where(told.shown == target, 0.0, values))


def veto(grounds: Grounds) -> Iterator[dict[str, Any]]:
    """Accounts with one vote each say the opposite of the retriever: is anything still served to all others?"""
    for (name, ground), share in product(grounds(), (0.0, 0.1, 0.2, 0.33)):
        count = round(HONEST * share / (1 - share))
        rows = ground.pool[HONEST : HONEST + count].tolist()
        base = ground.bench.collection.base
        upside = (np.arange(10) >= 5).astype(float)
        lies = [Ballot(f"attacker {i}", q, base[q][:10], upside) for i, q in enumerate(rows)]
        found = fit(counted(ground, [*users(ground), *lies]))
        yield {
            "collection": name,
            "share": share,
            "accounts": len(rows),
            "served": any(offset.served for offset in found.values()),
            "change": ground.change(found),
        }


PARTS = {"takeover": takeover, "second": second, "demotion": demotion, "veto": veto}
# By what the rows of a part are put together, and what is shown of them.
GROUPS = {
    "takeover": ("accounts", "honest users"),
    "second": ("queries", "said"),
    "demotion": ("accounts",),
    "veto": ("share",),
}
