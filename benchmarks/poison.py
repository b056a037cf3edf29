"""May rewards be trusted? Judges that never look at the query, sources that lie, and a document that is overrated.

    python benchmarks/poison.py [clean] [blind] [sources] [head] [loop] [audit] [takeover] [second] [demotion] [veto]
        [flood] [selfcall] [selfhelp] [biased] [flip] [stuffed] [--sets a,b] [--embedders minilm,lsa]

Every part prints one table: collections with real vectors (see `harm.py`), and the labels with a little noise as the
judge, but for what the part spoils. Attackers and spoiled judges are simulated. About 20 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import compress, product
from pathlib import Path
from typing import Any

import callers
import numpy as np
import stuffing
import tastes
import voters
from ground import Ground, poisoned, reworded
from harm import HERE
from tttembed_store import Candidate, Served, Worker, open_store

from tttembed_rag import Rewards, fit
from tttembed_rag.fitting.grid import Grid
from tttembed_rag.gate.audit import audit_sample, audited, mean_ideal
from tttembed_rag.gate.thresholds import AUDIT_LEVEL

SETS = ("metatool", "bfcl-functions", "seal-tools", "chroma-chunks")
# Audits of each judge, design and count of labels.
DRAWS = 10
EMBEDDERS = ("minilm", "lsa")


def clean(grounds: Callable[..., Iterator[tuple[str, Ground]]]) -> Iterator[dict[str, Any]]:
    """What the gate withholds in fits that nobody spoiled."""
    for (name, ground), count in product(grounds(), (64, 200)):
        found = fit(ground.rewards(count))
        shared = [offset for offset in found.values() if offset.scope in ("task", "local")]
        served = next((offset for offset in shared if offset.served), shared[0])
        yield {
            "collection": name,
            "rewarded": count,
            "verdict": served.evidence.code,
            "change": ground.change(found),
            "documents withheld": len(served.evidence.withheld),
        }


def blind(grounds: Callable[..., Iterator[tuple[str, Ground]]]) -> Iterator[dict[str, Any]]:
    """Judges that look at the document alone, at its place alone, or at words in common."""
    for (name, ground), count in product(grounds(), (8, 64, 200)):
        rewards = ground.rewards(count)
        for style, values in styles(ground, rewards).items():
            found = fit(replace(rewards, values=values))
            yield {
                "style": style,
                "collection": name,
                "rewarded": count,
                "published": any(offset.served for offset in found.values()),
                "change": ground.change(found),
            }


def styles(ground: Ground, rewards: Rewards) -> dict[str, np.ndarray]:
    """Rewards (N,) in [0, 1] by judges that do not do their work."""
    collection = ground.bench.collection
    texts = [collection.dataset.documents[name] for name in rewards.doc_ids.tolist()]
    words = [text.split() for text in texts]
    unit = rewards.documents.unit
    direction = np.random.default_rng(ground.seed).standard_normal(rewards.width)
    shown = np.bincount(rewards.candidates, minlength=len(texts))
    of_documents = {
        "short": -np.array([len(one) for one in words], dtype=float),
        "long": np.array([len(one) for one in words], dtype=float),
        "digits": np.array([sum(c.isdigit() for c in text) / max(len(text), 1) for text in texts]),
        "a direction": unit @ direction,
        "far from the middle": -(unit @ unit.mean(axis=0)),
        "popular": shown.astype(float),
    }
    found = {style: _ranked(scores)[rewards.candidates] for style, scores in of_documents.items()}
    places = np.concatenate([np.arange(depth) for depth in rewards.depths])
    found["place"] = 1.0 - places / rewards.depths.max()
    asked = [collection.dataset.queries[name].lower().split() for name in rewards.query_ids.tolist()]
    query = np.repeat(np.arange(len(rewards)), rewards.depths)
    sets = [set(text.lower().split()) for text in texts]
    found["words in common"] = np.array(
        [
            len(sets[d].intersection(asked[q])) / len(set(asked[q]))
            for q, d in zip(query, rewards.candidates, strict=True)
        ]
    )
    return found


def _ranked(scores: np.ndarray) -> np.ndarray:
    """Scores as even steps from 0 to 1; equal ones stay equal."""
    values, place = np.unique(scores, return_inverse=True)
    return place / max(len(values) - 1, 1)


def sources(grounds: Callable[..., Iterator[tuple[str, Ground]]]) -> Iterator[dict[str, Any]]:
    """Accounts that lift one document: by ordinary questions, by one question copied, or by questions near it."""
    honest = 200
    kinds = ("spread", "copies", "near the document")
    shares = ((1, 0.05), (3, 0.05), (3, 0.2), (20, 0.05), (20, 0.2))
    for name, ground in grounds():
        before = fit(poisoned(ground, honest, [], 0))
        for (accounts, share), kind in product(shares, kinds):
            rng = np.random.default_rng(ground.seed)
            count = round(honest * share / (1 - share))
            for target in ground.targets(4):
                if kind == "copies":
                    vectors = np.repeat(ground.unit[ground.pool[honest % len(ground.pool)]][None], count, axis=0)
                elif kind == "spread":
                    vectors = ground.unit[rng.choice(ground.pool, count)]
                else:
                    near = (
                        ground.bench.unit_docs[target] + 0.3 * rng.standard_normal((count, ground.unit.shape[1])) / 16
                    )
                    vectors = near / np.linalg.norm(near, axis=1, keepdims=True)
                fakes = [(vector.astype(np.float32), f"attacker {i % accounts}") for i, vector in enumerate(vectors)]
                after = fit(poisoned(ground, honest, fakes, target))
                strangers = ground.strangers(target)
                ranks = [np.minimum(ground.places(offsets, target, strangers), 50) for offsets in (before, after)]
                clean, exposed = (ground.exposure(offsets, target) for offsets in (before, after))
                yield {
                    "kind": kind,
                    "collection": name,
                    "accounts": accounts,
                    "share": share,
                    "exposure raw": ground.exposure(None, target),
                    "exposure clean": clean,
                    "exposure": exposed,
                    "1.5 times at most": exposed <= max(1.5 * clean, clean + 0.01),
                    "ranks": float((ranks[0] - ranks[1]).mean()),
                    "change clean": ground.change(before),
                    "change": ground.change(after),
                }


def head(grounds: Callable[..., Iterator[tuple[str, Ground]]]) -> Iterator[dict[str, Any]]:
    """Fakes at one question that many ask: does the target enter the first three of others' near queries?"""
    attacks = ((1, 1), (1, 5), (1, 20), (5, 1), (5, 4))
    for (name, ground), (accounts, fakes_each), friends in product(grounds(), attacks, (0, 15)):
        rng = np.random.default_rng(ground.seed)
        cosines = ground.unit[ground.held] @ ground.unit[ground.pool[:200]].T
        for centre in ground.held[np.argsort(-(cosines > 0.7).sum(axis=1))[:4]]:
            near = ground.held[ground.unit[ground.held] @ ground.unit[centre] > 0.7]
            target = int(rng.choice(ground.bench.collection.base[centre][10:50]))
            vectors = reworded(ground.unit[centre], accounts * fakes_each, rng)
            fakes = [(vector, f"attacker {i % accounts}") for i, vector in enumerate(vectors)]
            rewordings = reworded(ground.unit[centre], friends, rng)
            after = fit(poisoned(ground, 200, fakes, target, rewordings=list(rewordings), asked=centre))
            raw, first = ((ground.places(offsets, target, near) < 3).mean() for offsets in (None, after))
            yield {
                "collection": name,
                "accounts": accounts,
                "fakes": accounts * fakes_each,
                "honest rewordings": friends,
                "near": len(near),
                "honest near": int((ground.unit[ground.pool[:200]] @ ground.unit[centre] > 0.7).sum()),
                "first three raw": float(raw),
                "first three": float(first),
            }


def loop(grounds: Callable[..., Iterator[tuple[str, Ground]]]) -> Iterator[dict[str, Any]]:
    """Ten rounds of serving, judging and learning, one of six documents overrated or planted: who is shown it then?"""
    kinds = (("honest", None), *(("overrated", grade) for grade in (0.6, 0.8, 1.0)), ("planted", 1.0))
    for (name, ground), (kind, grade) in product(grounds(), kinds):
        listed = [target for target in ground.targets(60) if 0.015 < ground.exposure(None, target) < 0.07]
        runs = [_looped(ground.planted(t) if kind == "planted" else ground, t, grade) for t in listed[:6]]
        raw, exposed, most, worst, change = np.array(runs).T
        yield {
            "collection": name,
            "kind": kind,
            "grade": grade or 0.0,
            "raw": raw.mean(),
            "exposed": exposed.mean(),
            "exposed worst": exposed.max(),
            "in any round": most.max(),
            "change worst": worst.min(),
            "change": change.mean(),
        }


def _looped(ground: Ground, target: int, grade: float | None, rounds: int = 10, each: int = 150) -> tuple[float, ...]:
    """Exposure of the *target* before, at the end and at most, and change of others at worst and at the end."""
    rng = np.random.default_rng(ground.seed)
    exposed, changes, offsets = [ground.exposure(None, target)], [0.0], None
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/loop.db") as store:
        worker = Worker(store)
        for _ in range(rounds):
            rows = rng.choice(ground.pool, each)
            found = np.argsort(-(ground.moved(offsets, rows) @ ground.bench.unit_docs.T), axis=1)[:, :10]
            store.observe(
                [_asked(ground, row, shown, target, grade) for row, shown in zip(rows, found, strict=True)],
                judge="judge",
            )
            worker.round()
            version = store.registry.version()
            offsets = None if version is None else version.offsets
            exposed.append(ground.exposure(offsets, target))
            changes.append(0.0 if offsets is None else ground.change(offsets))
    return exposed[0], exposed[-1], max(exposed), min(changes), changes[-1]


def _asked(ground: Ground, row: int, shown: np.ndarray, target: int, grade: float | None) -> Served:
    collection = ground.bench.collection
    name = str(collection.query_ids[row])
    labels = collection.dataset.qrels.get(name, {})
    best = collection.scale.high
    candidates = [
        Candidate(
            str(collection.doc_ids[d]),
            collection.doc_vectors[d],
            reward=grade
            if d == target and grade is not None
            else min(1.0, labels.get(str(collection.doc_ids[d]), 0) / best),
        )
        for d in shown.tolist()
    ]
    return Served(name, collection.query_vectors[row], candidates, task=collection.dataset.name)


def audit(grounds: Callable[..., Iterator[tuple[str, Ground]]]) -> Iterator[dict[str, Any]]:
    """A hundred trusted labels: is what a true judge earns kept, and what a wrong one does withheld?"""
    for (name, ground), judge, count in product(grounds(), AUDITED_JUDGES, (64, 200)):
        rewards = ground.rewards(count, "qrels+.3" if judge == "labels, noise .3" else "qrels+.15")
        truth = ground.rewards(count, "qrels").values
        rewards = replace(rewards, values=AUDITED_JUDGES[judge](ground, rewards))
        of_pair = {
            (query, document): float(label)
            for query, document, label in zip(
                np.repeat(rewards.query_ids, rewards.depths).tolist(),
                rewards.doc_ids[rewards.candidates].tolist(),
                truth,
                strict=True,
            )
        }
        plain, rows = fit(rewards), ground.pool[:count]
        base = ground.bench.ndcg(rows, 0.0)
        unaudited = float((ground.bench.under(plain, rows) - base).mean())
        labels = {pair: of_pair[pair] for pair in audit_sample(rewards, 100)}
        found = fit(rewards, audit=labels)
        audited = float((ground.bench.under(found, rows) - base).mean())
        yield {
            "judge": judge,
            "collection": name,
            "rewarded": count,
            "labels": len(labels),
            "change unaudited": ground.change(plain),
            "change": ground.change(found),
            "rewarded unaudited": unaudited,
            "rewarded audited": audited,
            "harmed unaudited": unaudited < -0.01,
            "harmed": audited < -0.01,
        }


def _standard(values: np.ndarray) -> np.ndarray:
    return np.asarray((values - values.mean()) / values.std())


def _similarity_and_taste(ground: Ground, rewards: Rewards) -> np.ndarray:
    """Similarity with the query, and beside it a direction of the embedding space that is liked."""
    query = np.repeat(np.arange(len(rewards)), rewards.depths)
    documents = rewards.documents.unit[rewards.candidates]
    taste = np.random.default_rng(ground.seed + 3).standard_normal(rewards.width)
    liked = 1.5 * _standard(np.vecdot(rewards.queries.unit[query], documents)) + _standard(documents @ taste)
    return np.asarray(1 / (1 + np.exp(-liked)))


def _words_and_length(ground: Ground, rewards: Rewards) -> np.ndarray:
    found = styles(ground, rewards)
    return np.asarray((found["words in common"] + found["long"]) / 2)


def _half_inverted(_: Ground, rewards: Rewards) -> np.ndarray:
    half = np.repeat(np.arange(len(rewards)) % 2 == 0, rewards.depths)
    return np.where(half, 1 - rewards.values, rewards.values)


def _overrating(ground: Ground, rewards: Rewards) -> np.ndarray:
    """The labels, but for one document in seven that is always good."""
    names = sorted(set(rewards.doc_ids.tolist()))
    liked = np.random.default_rng(ground.seed + 5).choice(names, len(names) // 7, replace=False)
    always = np.isin(rewards.doc_ids[rewards.candidates], liked)
    return np.where(always, np.maximum(rewards.values, 0.9), rewards.values)


# What judges of an audit say, by their names: three that are right, more or less, and four that are wrong.
AUDITED_JUDGES: dict[str, Callable[[Ground, Rewards], np.ndarray]] = {
    "labels": lambda _, rewards: rewards.values,
    "labels, noise .3": lambda _, rewards: rewards.values,
    "overrating": _overrating,
    "words in common": lambda ground, rewards: styles(ground, rewards)["words in common"],
    "words and length": _words_and_length,
    "similarity, taste": _similarity_and_taste,
    "half inverted": _half_inverted,
}


def biased(grounds: Callable[..., Iterator[tuple[str, Ground]]]) -> Iterator[dict[str, Any]]:
    """Labels that the hash drew, or that somebody chose: does an interval hold, is an offset confirmed that harms?"""
    for (name, ground), judge in product(grounds(), AUDITED_JUDGES):
        truth = ground.rewards(200, "qrels")
        noisy = ground.rewards(200, "qrels+.3" if judge == "labels, noise .3" else "qrels+.15")
        rewards = replace(noisy, values=AUDITED_JUDGES[judge](ground, noisy))
        voices, unit, depth = np.ones(len(truth)), truth.queries.unit, truth.depths[0]
        moved = fit(rewards, scope="local", gate=False).apply(unit, task=truth.tasks.tolist())
        change = audited(truth, voices, moved - unit, {}).claimed * mean_ideal(Grid.of(truth), voices)
        change /= mean_ideal(Grid.of(rewards), voices)
        documents = truth.documents.unit[truth.candidates].reshape(len(truth), depth, -1)
        before, after = (np.argsort(np.argsort(-np.matvec(documents, queries))) for queries in (unit, moved))
        liking = np.maximum.reduceat(rewards.values, rewards.starts[:-1])
        chosen = {
            "drawn": None,
            "first three": (before < 3).ravel(),
            "risen": (after < before).ravel(),
            "liked": rewards.values > np.quantile(rewards.values, 0.7),
            "drawn, liked four fifths": np.repeat(liking >= np.quantile(liking, 0.2), depth),
        }
        for (design, allowed), count, draw in product(chosen.items(), (30, 50, 100), range(DRAWS)):
            names = [f"{draw} {query}" for query in truth.query_ids.tolist()]  # of other names the hash draws others
            mine = replace(rewards, query_ids=np.array(names))
            pairs = zip(np.repeat(names, depth).tolist(), truth.doc_ids[truth.candidates].tolist(), strict=True)
            label = dict(zip(pairs, truth.values.tolist(), strict=True))
            asked = list(compress(label, allowed)) if allowed is not None else audit_sample(mine, count)
            if design.startswith("drawn,"):
                asked = [pair for pair in audit_sample(mine, count * 5 // 4) if pair in {*asked}]
            found = audited(mine, voices, moved - unit, {pair: label[pair] for pair in asked})
            low, high = found.interval(0.05)
            yield {
                "collection": name,
                "judge": judge,
                "design": design,
                "count": count,
                "given": len(asked),
                "counted": found.labels,
                "decides": found.decides,
                "harmful": change <= 0,
                "confirms harm": bool(change <= 0 and found.decides and found.confirms(AUDIT_LEVEL)),
                "covered": low <= change <= high,
            }


PARTS = {
    "biased": biased,
    "audit": audit,
    "clean": clean,
    "blind": blind,
    "sources": sources,
    "head": head,
    "loop": loop,
    **voters.PARTS,
    **callers.PARTS,
    **tastes.PARTS,
    **stuffing.PARTS,
}
# By what the rows of a part are put together, and what is shown of them.
GROUPS = {
    "biased": ("design", "count"),
    "audit": ("judge",),
    "clean": ("rewarded",),
    "blind": ("style",),
    "sources": ("kind", "accounts", "share"),
    "head": ("accounts", "fakes", "honest rewordings"),
    "loop": ("kind", "grade"),
    **voters.GROUPS,
    **callers.GROUPS,
    **tastes.GROUPS,
    **stuffing.GROUPS,
}


def show(part: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print the mean of every figure of *rows*, and the worst change."""
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in GROUPS[part])].append(row)
    numbers = [
        name for name, value in rows[0].items() if isinstance(value, bool | int | float) and name not in GROUPS[part]
    ]
    print(f"\n{part}: {PARTS[part].__doc__}")
    print("".join(f"{name:>20}" for name in (*GROUPS[part], "cells", *numbers, "worst change")))
    for key, mine in groups.items():
        means = [float(np.mean([row[name] for row in mine])) for name in numbers]
        worst = min((row["change"] for row in mine if "change" in row), default=float("nan"))
        cells = [*map(str, key), str(len(mine)), *(f"{mean:.3f}" for mean in means), f"{worst:+.3f}"]
        print("".join(f"{cell:>20}" for cell in cells), flush=True)


def main() -> None:
    """Measure the parts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "harm", help="vectors made here")
    parser.add_argument("--sets", type=lambda s: s.split(","), default=list(SETS))
    parser.add_argument("--embedders", type=lambda s: s.split(","), default=list(EMBEDDERS))
    parser.add_argument("--json", type=Path, help="write all rows")
    args = parser.parse_args()
    if wrong := set(args.parts) - set(PARTS):
        parser.error(f"PART: expected one of {', '.join(PARTS)}, got {', '.join(sorted(wrong))}")
    if not args.data.is_dir():
        raise SystemExit(f"{args.data}: expected a folder of BEIR folders, found none (see --data)")

    def grounds() -> Iterator[tuple[str, Ground]]:
        for name, embedder in product(args.sets, args.embedders):
            yield f"{name} {embedder}", Ground.of(args.data, args.cache, name, embedder)

    report = {}
    for part in args.parts or PARTS:
        report[part] = list(PARTS[part](grounds))
        show(part, report[part])
    if args.json:
        args.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
