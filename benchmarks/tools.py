"""Search over tools against its rivals: recall@5 and nDCG@10 by the number of requests seen so far.

    python benchmarks/tools.py [--data FOLDER] [--sets metatool,seal-tools,...] [--seeds 0,1,2] [--json OUT.json]
        [--embedders e5]
    python benchmarks/tools.py --speed
    python benchmarks/tools.py --floor [--sets metatool,seal-tools,...] [--json OUT.json]
    python benchmarks/tools.py --callers [--sets metatool,seal-tools,...] [--seeds 0,1,2] [--json OUT.json]

FOLDER holds BEIR folders of tools with stored MiniLM vectors; default: ../shared/data beside the checkout. `stdlib` are
the callables of this Python's standard library, embedded here.

The agent is simulated by the labels: of the first ten tools that it is shown (by the search before it learned anything)
it calls those that are relevant, and they work. Every rival learns from these calls and from nothing else. A quarter of
the tools is never called: requests that need one of them are only measured, as are a quarter of the other requests.
The fused rivals add BM25 and the dense leg by reciprocal rank (k = 60). "weight alone" is ours without its offsets;
"ours and calls" favours tools that were called for near requests, which ours does not do.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tttembed_tools import Card, LearnedToolSearch
from tttembed_tools.catalog import cards_of
from tttembed_tools.index import WEIGHT, fused
from tttembed_tools.learning import rewards_of_outcomes, usable

from benchmarks.paper.rivals import adapter
from tttembed_rag import context
from tttembed_rag.evaluate.datasets import Dataset
from tttembed_rag.evaluate.files import load_beir, load_vectors

SETS = ("metatool", "seal-tools", "bfcl-functions", "apibench-hf", "stdlib")
# Whose requests no tool serves.
ELSEWHERE = ("scifact", "cranfield", "chroma-chunks", "hotpotqa-dev500")
COUNTS = (0, 25, 50, 100, 200, 400, 800)
# Requests that a floor learns from.
HEARD = 100
HERE = Path(__file__).resolve().parent
RIVALS = ("bm25", "dense", "fused", "oats", "oats fused", "oats, our legs", "centroids", "adapter")
OURS = ("weight alone", "ours", "ours and calls")
# OATS: a tool's vector moves so far toward the mean of the requests that it served.
_OATS = 0.3
# "ours and calls" adds, in so many standard deviations, the share of a tool in the calls made for requests near this
# one, by exp(_NEAR (cosine - 1)), with a Beta prior of so many calls of others.
_SHARE, _NEAR, _OTHERS = 5.0, 5.0, 0.1
# Who calls: the name of each, with the number of his five requests, and whether failures are reported too.
CALLERS = (
    ("nobody, successes", "", False),
    ("nobody, failures too", "", True),
    ("one source, successes", "ada", False),
    ("one source, failures too", "ada", True),
    ("40 sources, successes", "user {}", False),
    ("40 sources, failures too", "user {}", True),
)


class StoredVectors:
    """An embedder whose vectors are stored."""

    fingerprint = "stored"

    def __init__(self, vectors: dict[str, np.ndarray]) -> None:
        self._vectors = vectors

    def embed_queries(self, texts):
        """Their vectors."""
        return unit(np.stack([self._vectors[text] for text in texts]))

    embed_documents = embed_queries


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows at unit length."""
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


@dataclass
class World:
    """One set with one split.

    Attributes:
        search: The learned search over all tools.
        texts: Texts of all requests.
        vectors: Their vectors.
        right: The rows of the tools that each request needs.
        pool: Requests that may be seen, in order.
        held: Requests that are measured.
    """

    search: LearnedToolSearch
    texts: list[str]
    vectors: np.ndarray
    right: list[np.ndarray]
    pool: np.ndarray
    held: np.ndarray


def load(data: Path, name: str, embedder: str = "minilm") -> tuple[Dataset, np.ndarray, np.ndarray]:
    """A set with its vectors."""
    if name != "stdlib":
        dataset = load_beir(data / name)
        return dataset, *load_vectors(data / name, embedder, dataset)
    from benchmarks.callables import standard_library
    from tttembed_rag.embedders import minilm

    dataset = standard_library()
    documents = minilm(max_tokens=64).embed_documents(list(dataset.documents.values()))
    return dataset, documents, minilm(max_tokens=128).embed_queries(list(dataset.queries.values()))


def split(dataset: Dataset, documents: np.ndarray, queries: np.ndarray, seed: int) -> World:
    """A search over a set, and its requests by whether they may be seen or are measured."""
    rng = np.random.default_rng(seed)
    names = {name: row for row, name in enumerate(dataset.documents)}
    texts, vectors, right = [], [], []
    for vector, (query, text) in zip(queries, dataset.queries.items(), strict=True):
        rows = np.array([names[d] for d, grade in dataset.qrels[query].items() if grade > 0 and d in names], dtype=int)
        if len(rows) and text not in texts:
            texts.append(text)
            vectors.append(vector)
            right.append(rows)
    called = np.unique(np.concatenate(right))
    never = set(rng.choice(called, len(called) // 4, replace=False).tolist())
    new = np.array([bool(never & set(rows.tolist())) for rows in right])
    old = rng.permutation(np.flatnonzero(~new))
    held, pool = old[: len(old) // 4], old[len(old) // 4 :]
    measured = np.concatenate([held, np.flatnonzero(new)])
    measured = rng.permutation(measured)[:600]
    cards = cards_of([Card(name, text) for name, text in dataset.documents.items()])
    own = (card.text for card in cards)  # cut where it is long
    embedder = StoredVectors(dict(zip(own, documents, strict=True)) | dict(zip(texts, vectors, strict=True)))
    return World(LearnedToolSearch(cards, embedder), texts, unit(np.array(vectors)), right, pool, measured)


def measures(order: np.ndarray, right: list[np.ndarray]) -> np.ndarray:
    """(n, 2) recall@5, of at most five, and nDCG@10 of lists of ten rows each."""
    discounts = 1 / np.log2(np.arange(2, 12))
    result = []
    for row, rows in zip(order, right, strict=True):
        found = np.isin(row, rows)
        ideal = discounts[: min(10, len(rows))].sum()
        result.append((found[:5].sum() / min(5, len(rows)), (found * discounts[: len(row)]).sum() / ideal))
    return np.array(result)


def by_rank(dense: np.ndarray, keyword: np.ndarray, k: int = 60) -> np.ndarray:
    """Fused by reciprocal rank; a tool that BM25 does not find gets nothing for it."""
    ranks = [
        np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1, kind="stable") for scores in (dense, keyword)
    ]
    return 1 / (k + 1 + ranks[0]) + np.where(keyword > 0, 1 / (k + 1 + ranks[1]), 0)


def moved_tools(tools: np.ndarray, queries: np.ndarray, calls: list[np.ndarray], step: float) -> np.ndarray:
    """Tools moved toward the mean of the requests that they served: OATS; all the way for centroids."""
    served: dict[int, list[np.ndarray]] = {}
    for query, rows in zip(queries, calls, strict=True):
        for row in rows.tolist():
            served.setdefault(row, []).append(query)
    moved = tools.copy()
    for row, vectors in served.items():
        moved[row] = unit((1 - step) * tools[row] + step * unit(np.mean(vectors, axis=0)))
    return moved


def share_of_calls(queries: np.ndarray, past: np.ndarray, calls: list[np.ndarray], tools: int) -> np.ndarray:
    """(n, tools) how much of what was called for requests near each query went to each tool, in [0, 1]."""
    worked = np.zeros((len(past), tools), dtype=np.float32)
    for row, rows in zip(worked, calls, strict=True):
        row[rows] = 1
    near = np.exp(_NEAR * (queries @ past.T - 1))
    return near @ worked / (near.sum(axis=1, keepdims=True) + _OTHERS)


def compare(world: World, counts: tuple[int, ...]) -> Iterator[dict]:
    """A row for each rival and count: measures on all requests held out, on tools called before and never called."""
    search, held = world.search, world.held
    index = search._index  # noqa: SLF001 - rivals search the same catalogue
    right = [world.right[row] for row in held]
    keyword = np.stack([index.keywords.scores(world.texts[row]) for row in held])
    queries = world.vectors[held]
    # What the agent calls, of what the search shows before it learned anything.
    shown = [[index.rows[name] for name in search(world.texts[row], k=10)] for row in world.pool]
    calls = [np.intersect1d(rows, world.right[row]) for rows, row in zip(shown, world.pool, strict=True)]
    told = 0
    for count in counts:
        if count > len(world.pool):
            break
        for row, rows in zip(world.pool[told:count], calls[told:count], strict=True):
            for tool in rows.tolist():
                search.used(world.texts[row], index.cards[tool].name)
        told = count
        lesson = search.learn()
        seen = set(np.concatenate(calls[:count]).tolist()) if count else set()
        known = np.array([bool(seen & set(rows.tolist())) for rows in right])
        past = world.vectors[world.pool[:count]]
        near = moved_tools(index.vectors, past, calls[:count], _OATS)
        centres = moved_tools(index.vectors, past, calls[:count], 1.0)
        dense, oats = queries @ index.vectors.T, queries @ near.T
        scores = {
            "bm25": keyword,
            "dense": dense,
            "fused": by_rank(dense, keyword),
            "oats": oats,
            "oats fused": by_rank(oats, keyword),
            "oats, our legs": fused(oats, keyword, WEIGHT),
            "centroids": queries @ centres.T,
            "weight alone": fused(dense, keyword, lesson.weight),
        }
        steered = queries if search.offsets is None else search.offsets.apply(queries)
        called = share_of_calls(queries, past, calls[:count], len(index))
        scores["ours and calls"] = fused(steered @ index.vectors.T, keyword, lesson.weight) + _SHARE * called
        requests = usable(search.requests(), index)
        if len(requests) >= 2:
            matrix = adapter(rewards_of_outcomes(requests, index))
            scores["adapter"] = (queries @ matrix.T.astype(np.float32)) @ index.vectors.T
        else:
            scores["adapter"] = dense
        lists = {name: np.argsort(-values, axis=1, kind="stable")[:, :10] for name, values in scores.items()}
        lists["ours"] = np.array([[index.rows[name] for name in search(world.texts[row], k=10)] for row in held])
        for name, order in lists.items():
            each = measures(order, right)
            yield {
                "rival": name,
                "requests": count,
                "learned": lesson.requests,
                "weight": lesson.weight,
                "all": each.mean(axis=0).tolist(),
                "called": each[known].mean(axis=0).tolist() if known.any() else None,
                "never": each[~known].mean(axis=0).tolist() if (~known).any() else None,
            }


def table(rows: list[dict], part: str, measure: int, title: str) -> None:
    """Means over sets and seeds by rival and count; a count has the sets that have as many requests."""
    print(f"\n{title}")
    print(f"{'':<16}" + "".join(f"{count:>8}" for count in COUNTS))
    for rival in (*RIVALS, *OURS):
        cells = []
        for count in COUNTS:
            mine = [r for r in rows if (r["rival"], r["requests"]) == (rival, count) and r[part]]
            sets = {r["set"] for r in mine}
            means = [np.mean([r[part][measure] for r in mine if r["set"] == name]) for name in sets]
            cells.append(f"{np.mean(means):>8.3f}" if means else f"{'-':>8}")
        print(f"{rival:<16}" + "".join(cells))


def against(rows: list[dict], rival: str, measure: int) -> None:
    """By set and count, our mean less a rival's; the worst set is what a user may meet."""
    print(f"\nours less {rival}, nDCG@10, by set (mean of seeds; in brackets the worst seed)")
    print(f"{'':<16}" + "".join(f"{count:>17}" for count in COUNTS))
    for name in dict.fromkeys(r["set"] for r in rows):
        cells = []
        for count in COUNTS:
            mine = {
                who: {
                    r["seed"]: r["all"][measure]
                    for r in rows
                    if (r["set"], r["rival"], r["requests"]) == (name, who, count)
                }
                for who in ("ours", rival)
            }
            deltas = [value - mine[rival][seed] for seed, value in mine["ours"].items()]
            cells.append(f"{np.mean(deltas):>+8.3f} ({min(deltas):+.3f})" if deltas else f"{'-':>17}")
        print(f"{name:<16}" + "".join(f"{cell:>17}" for cell in cells))


def floor(data: Path, sets: list[str]) -> list[dict]:
    """What a search that abstains finds nothing for, by set and split: requests held out, and those of other sets."""
    loaded = {name: load(data, name) for name in sets}
    for name in ELSEWHERE:
        loaded[name] = load(data, name)
    rows = []
    for name, seed in ((name, seed) for name in sets for seed in (0, 1, 2)):
        world = split(*loaded[name], seed)
        search, embedder = world.search, world.search._embedder  # noqa: SLF001 - requests of others have vectors, too
        search._abstain = True  # noqa: SLF001 - as its argument
        for row in world.pool[:HEARD]:
            for tool in search(world.texts[row], k=10):
                if search._index.rows[tool] in world.right[row]:  # noqa: SLF001 - the simulated agent
                    search.used(world.texts[row], tool)
        search.learn()
        nothing = [not search(world.texts[row]) for row in world.held]
        found = {"set": name, "seed": seed, "own": float(np.mean(nothing))}
        for part, others in (("tools", sets), ("texts", ELSEWHERE)):
            shares = []
            for other in set(others) - {name}:
                dataset, _, vectors = loaded[other]
                embedder._vectors |= dict(zip(dataset.queries.values(), vectors, strict=True))  # noqa: SLF001 - likewise
                asked = np.random.default_rng(seed).permutation(list(dataset.queries.values()))[:200]
                shares.append(np.mean([not search(str(text)) for text in asked]))
            found[part] = float(np.mean(shares))
        live = search.offsets
        certain = live is not None and any(live.floor(task) is not None for task in live.tasks)
        rows.append(found | {"certain": certain})
        print(rows[-1], flush=True)
    return rows


def callers(data: Path, sets: list[str], seeds: list[int]) -> list[dict]:
    """What two hundred requests teach, by who asks them and what is reported: recall@5 of requests held out.

    The agent is shown ten tools. It calls those that are relevant, or all ten and reports which of them failed. "again"
    is the recall of the same requests, asked once more by the same caller, beside the recall@10 of the first search.
    """
    rows = []
    for name in sets:
        loaded = load(data, name)
        for (who, source, fails), seed in ((caller, seed) for caller in CALLERS for seed in seeds):
            world = split(*loaded, seed)
            search, asked = world.search, world.pool[:200].tolist()

            def recall(queries: list[int], k: int, world: World = world) -> list[float]:
                index = world.search._index  # noqa: SLF001 - which row is called what
                lists = [[index.rows[tool] for tool in world.search(world.texts[query], k)] for query in queries]
                right = [world.right[query] for query in queries]
                return [np.isin(rows, own).sum() / min(k, len(rows)) for own, rows in zip(lists, right, strict=True)]

            before, first, again = recall(world.held.tolist(), 5), [], []
            for place, query in enumerate(asked):
                with context(source=source.format(place // 5)):
                    first += recall([query], 10)
                    for tool in search(world.texts[query], 10):
                        works = search._index.rows[tool] in world.right[query]  # noqa: SLF001 - likewise
                        if works or fails:
                            search.used(world.texts[query], tool, works)
            lesson = search.learn()
            for place, query in enumerate(asked):
                with context(source=source.format(place // 5)):
                    again += recall([query], 5)
            means = [float(np.mean(values)) for values in (before, recall(world.held.tolist(), 5), first, again)]
            measured = dict(zip(("before", "after", "first@10", "again@5"), means, strict=True))
            rows.append({"set": name, "seed": seed, "who": who, **measured, "weight": lesson.weight})
            print(rows[-1] | {"reason": lesson.reason}, flush=True)
    print(f"\n{'':<26}{'gain':>8}{'first@10':>10}{'again@5':>10}")
    for who, _, _ in CALLERS:
        mine = [row for row in rows if row["who"] == who]
        gain = np.mean([row["after"] - row["before"] for row in mine])
        asked_twice = "".join(f"{np.mean([row[part] for row in mine]):>10.3f}" for part in ("first@10", "again@5"))
        print(f"{who:<26}{gain:>+8.3f}{asked_twice}")
    return rows


def speed() -> None:
    """Milliseconds of a search of 5,000 tools, all but the embedding, before and after learning.

    Time on the clock counts what other programs take meanwhile; time of a processor does not.
    """
    rng = np.random.default_rng(0)
    words = [f"word{i}" for i in range(4000)]
    cards = [Card(f"tool{i}", " ".join(rng.choice(words, 20))) for i in range(5000)]
    requests = [" ".join(rng.choice(words, 12)) for _ in range(500)]
    # Two tools for each topic; the one that works lies on the far side of every request, so that an offset is served.
    topics, side = rng.standard_normal((2500, 384)), 4 * unit(rng.standard_normal(384))
    vectors = {card.text: topics[i // 2] + (side if i % 2 else -side) for i, card in enumerate(cards)}
    right = 2 * rng.integers(0, 2500, 500) + 1
    vectors |= {
        text: topics[row // 2] + 0.7 * rng.standard_normal(384) - side / 2
        for text, row in zip(requests, right, strict=True)
    }
    search = LearnedToolSearch(cards, StoredVectors(vectors))

    def timed(what: str) -> None:
        for text in requests:
            search(text)  # their vectors are known from now on
        for kind, clock in (("on the clock", time.perf_counter), ("of a processor", time.thread_time)):
            each = []
            for text in requests:
                began = clock()
                search(text)
                each.append(1e3 * (clock() - began))
            print(f"{what}: median {np.median(each):.2f} ms {kind}, 99% under {np.quantile(each, 0.99):.2f} ms")

    timed("5,000 tools, nothing learned")
    for text, row in zip(requests[:250], right, strict=False):
        search.used(text, f"tool{row}")
    began = time.perf_counter()
    print(f"{search.learn()} ({time.perf_counter() - began:.1f} s)")
    timed("5,000 tools, 250 requests learned")


def main() -> None:
    """Measure every set and split, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--embedders", default="minilm", help="one whose vectors are stored with the sets")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--floor", action="store_true")
    parser.add_argument("--callers", action="store_true")
    args = parser.parse_args()
    if args.speed:
        speed()
        return
    if not args.data.is_dir():
        raise SystemExit(f"{args.data}: expected a folder of BEIR folders, found none (see --data)")
    if args.floor or args.callers:
        sets, seeds = args.sets.split(","), [int(seed) for seed in args.seeds.split(",")]
        rows = floor(args.data, sets) if args.floor else callers(args.data, sets, seeds)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        return
    rows = []
    for name in args.sets.split(","):
        loaded = load(args.data, name, args.embedders)
        for seed in map(int, args.seeds.split(",")):
            began = time.perf_counter()
            world = split(*loaded, seed)
            mine = [{"set": name, "seed": seed} | row for row in compare(world, COUNTS)]
            rows += mine
            print(
                f"{name}, split {seed}: {len(world.pool)} requests to see, {len(world.held)} measured, "
                f"{time.perf_counter() - began:.0f} s",
                flush=True,
            )
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    for measure, label in ((0, "recall@5"), (1, "nDCG@10")):
        for part, whom in (("all", "all requests"), ("called", "tools called before"), ("never", "tools never called")):
            table(rows, part, measure, f"{label}, {whom}: mean of sets, by requests seen")
    for rival in ("fused", "oats", "oats, our legs"):
        against(rows, rival, 1)


if __name__ == "__main__":
    main()
