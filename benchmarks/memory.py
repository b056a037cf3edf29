"""Recall of memories against what people write by hand: recall@5 of users' requests, before and after outcomes.

    python benchmarks/memory.py [--data FOLDER] [--users 100] [--json OUT.json]
    python benchmarks/memory.py --speed

LongMemEval's retrieval part asks users' questions, whose evidence lies in a few of some hundred memories, some of which
were updated meanwhile. It cannot be had offline; this is its shape, made of eight BEIR folders with stored MiniLM
vectors (FOLDER; default: ../shared/data beside the checkout). A user asks about three topics: a hundred queries of
three collections near one of each. The 300 memories are the texts that these queries need and the texts nearest to
them. Of the first ten memories that are found, the right ones help; nothing is said of the others. After half of 50
outcomes a tenth of the memories is forgotten and as many come. Then each user's other 50 requests are measured.

Documents and queries are cut into two halves without a text in common. Whatever has a constant of its own has the best
of six from users of the development half; the table is of users of the other half. "Ours" is what each user's own
outcomes teach.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tttembed_tools import Card, LearnedRecall
from tttembed_tools.index import WEIGHT, fused
from tttembed_tools.learning import weight_of

from benchmarks.harm import has_vectors
from benchmarks.tools import StoredVectors, unit
from tttembed_rag import context
from tttembed_rag.evaluate.files import load_beir, load_vectors
from tttembed_rag.offsets.offsets import Offsets

SETS = ("metatool", "seal-tools", "bfcl-functions", "apibench-hf", "chroma-chunks", "cranfield", "hotpotqa-dev500")
SETS += ("scifact",)
HALVES = ("development", "test")
ITEMS, OUTCOMES, SUBJECTS, RENEWED = 300, 50, 3, 30
SHOWN, MEASURED = 10, 5
HERE = Path(__file__).resolve().parent
# By how much each rival's own constant is multiplied; the best on the development half is shown too.
FACTORS = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
# The rivals' constants as they are written: aidevops, memory-lancedb-pro, and halves after so many requests.
USEFULNESS, UP, DOWN, DECAY, HALF_LIFE = 0.3, 0.05, 0.03, 0.1, 25
# Two phases: so many by similarity, then by a mean of similarity and value, which moves so far with each outcome.
FIRST, RATE = 20, 0.3
# Of memories, by rival and factor; and by user what they are served.
Scores: TypeAlias = dict[tuple[str, float], np.ndarray]
Served: TypeAlias = Mapping[str, Offsets | None]


@dataclass
class Half:
    """Texts of all collections that no other half has: queries as (text, vector, names of right documents)."""

    documents: dict[str, dict[str, tuple[str, np.ndarray]]] = field(default_factory=dict)
    queries: dict[str, list[tuple[str, np.ndarray, list[str]]]] = field(default_factory=dict)


@dataclass
class User:
    """A user: memories at first and those that come later and go, requests in order, and others that are measured."""

    name: str
    texts: dict[str, str]
    later: list[str]
    gone: list[str]
    asked: list[tuple[str, np.ndarray, list[str]]]
    held: list[tuple[str, np.ndarray, list[str]]]


def halves(data: Path, seed: int, embedder: str = "minilm") -> list[Half]:
    """Both halves of all collections."""
    found = [Half(), Half()]
    for name in (one for one in SETS if has_vectors(data, one, embedder)):
        dataset = load_beir(data / name)
        documents, queries = load_vectors(data / name, embedder, dataset)
        rng = np.random.default_rng(seed)
        of_document = dict(zip(dataset.documents, rng.integers(2, size=len(dataset.documents)).tolist(), strict=True))
        for half in (0, 1):
            found[half].documents[name] = {
                f"{name}/{one}": (text, vector)
                for (one, text), vector in zip(dataset.documents.items(), documents, strict=True)
                if of_document[one] == half and text.strip()
            }
            found[half].queries[name] = []
        seen = set()
        for (query, text), vector in zip(dataset.queries.items(), queries, strict=True):
            half = int(rng.integers(2))
            graded = dataset.qrels[query].items()
            right = [f"{name}/{one}" for one, grade in graded if grade > 0 and of_document.get(one) == half]
            right = [one for one in right if one in found[half].documents[name]][:MEASURED]
            if right and text not in seen:
                seen.add(text)
                found[half].queries[name].append((text, vector, right))
    return found


def user(half: Half, number: int, seed: int) -> User:
    """One user of a half, who asks about three topics: requests near one, and memories near these requests."""
    rng = np.random.default_rng([seed, number])
    each = 2 * OUTCOMES // SUBJECTS + 1
    pool, near = [], {}
    for name in rng.choice(list(half.documents), SUBJECTS, replace=False).tolist():
        vectors = unit(np.stack([vector for _, vector, _ in half.queries[name]]).astype(np.float32))
        asked = np.argsort(-vectors @ vectors[rng.integers(len(vectors))])[:each]
        pool += [half.queries[name][row] for row in asked]
        documents = unit(np.stack([vector for _, vector in half.documents[name].values()]).astype(np.float32))
        best = (vectors[asked] @ documents.T).max(axis=0)
        near |= dict(zip(half.documents[name], best.tolist(), strict=True))
    pool = _some(rng, pool, 2 * OUTCOMES)
    asked, held = pool[:OUTCOMES], pool[OUTCOMES:]
    needed = {one for _, _, right in held for one in right}
    early = {one for _, _, right in asked[: OUTCOMES // 2] for one in right}
    every = {one: None for _, _, right in pool for one in right}
    others = sorted((one for one in near if one not in every), key=lambda one: -near[one])
    names = [*every, *others[: max(0, ITEMS + RENEWED - len(every))]]
    later = _some(rng, [one for one in names if one not in early], RENEWED)
    gone = _some(rng, [one for one in names if one not in needed and one not in later], RENEWED)
    texts = {one: half.documents[one.partition("/")[0]][one][0] for one in names}
    return User(f"user {number}", texts, later, gone, asked, held)


def _some(rng: np.random.Generator, items: list, count: int) -> list:
    """At most *count* of *items*, at random."""
    return [items[place] for place in rng.permutation(len(items))[: max(count, 0)]]


@dataclass
class Told:
    """What rivals know of memories: how often each was shown and helped, its counter, its recent uses, its value."""

    shown: np.ndarray
    helped: np.ndarray
    counter: np.ndarray
    warmth: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, size: int) -> Told:
        """Nothing yet."""
        return cls(*(np.zeros(size) for _ in range(5)))

    def tell(self, shown: list[int], helped: set[int]) -> None:
        """One outcome."""
        self.warmth *= 0.5 ** (1 / HALF_LIFE)
        for row in shown:
            good = row in helped
            self.shown[row] += 1
            self.helped[row] += good
            self.counter[row] += UP if good else -DOWN
            self.warmth[row] += good
            self.value[row] += RATE * (good - self.value[row])


def two_phases(scores: np.ndarray, told: Told, factor: float) -> np.ndarray:
    """Similarity, then learned value among its first."""
    first = np.argsort(-scores)[:FIRST]
    result = scores - 10 * np.ptp(scores)
    result[first] = scores[first] + factor * np.std(scores[first]) * (told.value[first] / max(told.value.max(), 1e-9))
    return result


# By name, what each rival makes of scores; the last argument multiplies its constant.
RIVALS: dict[str, Callable[[np.ndarray, Told, float], np.ndarray]] = {
    "usefulness": lambda scores, told, factor: scores + factor * USEFULNESS * told.helped / np.maximum(told.shown, 1),
    "counters": lambda scores, told, factor: scores + factor * np.clip(told.counter, -0.5, 0.5),
    "decay": lambda scores, told, factor: scores + factor * DECAY * np.log1p(told.warmth),
    "success prior": lambda scores, told, factor: (
        (scores - scores.min()) * ((1 + told.helped) / (2 + told.shown)) ** factor
    ),
    "two phases": two_phases,
}


def lived(users: list[User], half: Half) -> tuple[LearnedRecall, dict[str, Told]]:
    """All users' memories with their outcomes, of which nothing is learned yet."""
    vectors = {text: vector for rows in half.documents.values() for text, vector in rows.values()}
    vectors |= {text: vector for rows in half.queries.values() for text, vector, _ in rows}
    recall = LearnedRecall({}, StoredVectors(vectors))
    told: dict[str, Told] = {}
    for one in users:
        with context(tenant=one.name):
            recall.add([Card(name, text) for name, text in one.texts.items() if name not in one.later])
            rows, kept = {name: row for row, name in enumerate(one.texts)}, Told.of(len(one.texts))
            for number, (text, _, right) in enumerate(one.asked):
                if number == OUTCOMES // 2:
                    recall.forget(one.gone)
                    recall.add([Card(name, one.texts[name]) for name in one.later])
                shown = recall(text, k=SHOWN)
                for name in set(shown) & set(right):
                    recall.used(text, name)
                kept.tell([rows[name] for name in shown[:MEASURED]], {rows[name] for name in right})
            order = [rows[name] for name in recall.names]
            told[one.name] = Told(*(column[order] for column in vars(kept).values()))
    return recall, told


def lists(recall: LearnedRecall, kept: Told, user: str, text: str, vector: np.ndarray, served: Served) -> Scores:
    """The scores of a user's memories for a request by all rivals with all constants, and with what is *served*."""
    index, x = recall.index_of(user), unit(vector)
    dense, both = index.vectors @ x, index.scores(text, x, WEIGHT)
    scores: Scores = {("similarity", 0.0): dense, ("similarity and BM25", 0.0): both}
    for (name, rival), factor in product(RIVALS.items(), FACTORS):
        scores[name, factor] = rival(dense, kept, factor)
        scores[f"{name}, our legs", factor] = rival(both * (dense.std() / both.std()), kept, factor)
    own = served[user]
    moved = x if own is None else own.apply(x)
    scores["alone", 0.0] = fused(index.vectors @ moved, index.keywords.scores(text), weight_of(own))
    return scores


def measured(recall: LearnedRecall, told: dict[str, Told], users: list[User], served: Served) -> list[dict]:
    """Recall@5 by user and rival: of all requests, and of those that need memories that helped before, or others."""
    found = []
    for one in users:
        kept, each = told[one.name], defaultdict(list)
        rows = recall.index_of(one.name).rows
        for text, vector, right in one.held:
            places = [rows[name] for name in right if name in rows]
            known = bool(kept.helped[places].any())
            for key, scores in lists(recall, kept, one.name, text, vector, served).items():
                first = np.argsort(-scores, kind="stable")[:MEASURED].tolist()
                each[key].append((len({*first} & {*places}) / min(MEASURED, len(places)), known))
        for (name, factor), pairs in each.items():
            parts = {
                "all": [v for v, _ in pairs],
                "before": [v for v, k in pairs if k],
                "new": [v for v, k in pairs if not k],
            }
            means = {part: float(np.mean(values)) if values else None for part, values in parts.items()}
            found.append({"user": one.name, "rival": name, "factor": factor, **means})
    return found


def mean(rows: list[dict], half: str, rival: str, factor: float, part: str = "all") -> float:
    """Of the users of a half who have such requests."""
    mine = [r[part] for r in rows if (r["half"], r["rival"], r["factor"]) == (half, rival, factor)]
    return float(np.mean([value for value in mine if value is not None]))


def table(rows: list[dict]) -> list[dict]:
    """A line for each rival: with its constant as written, with the best of development, and on our legs; then ours."""
    lines = []
    base = {r["user"]: r["all"] for r in rows if (r["half"], r["rival"]) == ("test", "similarity")}

    def line(label: str, rival: str, factor: float) -> None:
        own = {r["user"]: r["all"] for r in rows if (r["half"], r["rival"], r["factor"]) == ("test", rival, factor)}
        gains = np.array([own[user] - base[user] for user in base])
        line = {"rival": label, "factor": factor, "gain": float(gains.mean())}
        line |= {"error": float(gains.std() / np.sqrt(len(gains)))}
        lines.append(line | {part: mean(rows, "test", rival, factor, part) for part in ("all", "before", "new")})

    line("similarity", "similarity", 0.0)
    for name in RIVALS:
        for rival, label in ((name, name), (f"{name}, our legs", f"{name}, on our legs")):
            best = max(FACTORS, key=lambda factor, rival=rival: mean(rows, "development", rival, factor))
            if rival == name:
                line(f"{name}, as written", name, 1.0)
            line(f"{label}, tuned", rival, best)
    for name in ("similarity and BM25", "alone"):
        line(name, name, 0.0)
    return lines


def speed() -> None:
    """Milliseconds to search 10,000 memories beside the embedding, and to add one, with what was learned served."""
    rng = np.random.default_rng(0)
    words = [f"word{i}" for i in range(4000)]
    cards = [Card(f"memory {i}", " ".join(rng.choice(words, 20))) for i in range(10_300)]
    requests = [" ".join(rng.choice(words, 12)) for _ in range(500)]
    side, topics = 4 * unit(rng.standard_normal(384)), rng.standard_normal((5150, 384))
    vectors = {card.text: topics[i // 2] + (side if i % 2 else -side) for i, card in enumerate(cards)}
    right = 2 * rng.integers(0, 5000, 500) + 1
    noise = 0.7 * rng.standard_normal((500, 384)) - side / 2
    vectors |= {text: topics[row // 2] + one for text, row, one in zip(requests, right, noise, strict=True)}
    recall = LearnedRecall(cards[:10_000], StoredVectors(vectors))
    for text, row in zip(requests[:250], right, strict=False):
        recall.used(text, f"memory {row}")
    print(recall.learn())
    for text in requests:
        recall(text)  # their vectors are known from now on

    def timed(what: str, act: Callable[[Any], Any], over: Sequence[Any]) -> None:
        for kind, clock in (("on the clock", time.perf_counter), ("of a processor", time.thread_time)):
            half = over[: len(over) // 2] if kind == "on the clock" else over[len(over) // 2 :]
            each = []
            for one in half:
                began = clock()
                act(one)
                each.append(1e3 * (clock() - began))
            print(f"{what}: median {np.median(each):.2f} ms {kind}, 99% under {np.quantile(each, 0.99):.2f} ms")

    timed("search 10,000", recall, requests)
    timed("add one", lambda card: recall.add([card]), cards[10_000:])
    timed("remove one", lambda card: recall.remove([card.name]), cards[:40])


def main() -> None:
    """Measure the users of both halves, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--embedders", default="minilm", help="one whose vectors are stored with the sets")
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--speed", action="store_true")
    args = parser.parse_args()
    if args.speed:
        speed()
        return
    if not args.data.is_dir():
        raise SystemExit(f"{args.data}: expected a folder of BEIR folders, found none (see --data)")
    rows = []
    for number, (name, half) in enumerate(zip(HALVES, halves(args.data, 0, args.embedders), strict=True)):
        users = [user(half, one, number) for one in range(args.users)]
        recall, told = lived(users, half)
        lessons = recall.learn_for_all()
        served = {one.name: recall._outcomes.live.for_tenant(one.name).current for one in users}  # noqa: SLF001 - likewise
        rows += [{"half": name} | row for row in measured(recall, told, users, served)]
        moved = sum(one.moves for one in lessons.values())
        print(f"{name}: {len(users)} users, {moved} are served offsets of their own", flush=True)
    lines = table(rows)
    if args.json:
        args.json.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")
    print(f"\n{'recall@5 of the test half':<32}{'x':>6}{'all':>8}{'gain':>9}{'+-':>7}{'before':>9}{'new':>8}")
    for one in lines:
        parts = f"{one['all']:>8.3f}{one['gain']:>+9.3f}{one['error']:>7.3f}{one['before']:>9.3f}{one['new']:>8.3f}"
        print(f"{one['rival']:<32}{one['factor']:>6g}{parts}")


if __name__ == "__main__":
    main()
