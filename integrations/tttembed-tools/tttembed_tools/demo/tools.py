"""The main job, shown: an agent's search over tools gets better by being told which tools worked.

The tools are those of a made-up office, the requests are in a person's words. Half of the requests are seen, one after
another: the tool that people finally used is what worked. The other half is only measured. The office has eight
servers of tools, two for every kind of work.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

import numpy as np

from tttembed_rag.embedders.cache import CachedEmbedder, VectorCache
from tttembed_rag.embedders.contract import Embedder
from tttembed_rag.embedders.smallmodel import minilm
from tttembed_rag.errors import InputError
from tttembed_rag.evaluate.datasets import Dataset
from tttembed_rag.fitting.measures import dcg, ndcg
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.vectors.checks import FloatArray
from tttembed_rag.vectors.rows import Float64
from tttembed_tools.catalog import Card
from tttembed_tools.index import WEIGHT, Index, best
from tttembed_tools.learning import fits, weight_of
from tttembed_tools.tools import LearnedToolSearch

# Requests seen, up to half of all.
_SEEN = (0, 25, 50, 100)


@dataclass(frozen=True, slots=True)
class DemoRow:
    """The requests held out in one *split*, searched after so many others were *seen*.

    The right tool is found *first* for a share of them. nDCG@10 is that of the search, and of each part of what was
    learned alone: *weight* is that of BM25, and offsets are served where it *moves*. A search that abstains finds
    nothing for a share of requests that no tool serves, *none*, and for a share of those held out, *lost*.
    """

    split: int
    seen: int
    first: float
    ndcg10: float
    by_weight: float
    by_offsets: float
    weight: float
    moves: bool
    none: float
    lost: float


def run_tool_demo(
    seeds: Sequence[int],
    say: Callable[[str], None],
    *,
    library: Callable[[int], Dataset] | None = None,
    embedder: Embedder | None = None,
) -> list[dict[str, Any]]:
    """Run the demo, say it line by line, and return its rows.

    Each of *seeds* splits requests into those that are seen and those that are measured. *library* gives tools,
    requests and the tools that people finally used by the seed of a split, and only these differ between splits; by
    default it is a made-up office. The model is by default all-MiniLM-L6-v2.

    Raises:
        InputError: There is no seed, or a negative one.
    """
    if not seeds or min(seeds) < 0:
        raise InputError(f"seeds: expected numbers >= 0, got {tuple(seeds)}")
    embedder = CachedEmbedder(embedder or minilm(max_tokens=128), VectorCache.open(None))
    library = library or office
    first = library(seeds[0])
    cards = [Card(name, text) for name, text in first.documents.items()]
    say(f"{len(cards)} tools of {first.name}, {len(first.queries)} requests; people used the right tool")
    say(f"Embedding tools and requests with {embedder.fingerprint} ...")
    index = Index().plus(cards, embedder.embed_documents([card.text for card in cards]))
    rows: list[DemoRow] = []
    whys: list[str] = []
    for seed in seeds:
        of_split, why = _measured(library(seed), index, embedder, seed)
        rows += of_split
        whys.append(why)
    lines = [_line([row for row in rows if row.seen == seen], rows) for seen in sorted({row.seen for row in rows})]
    say("")
    say(f"Requests that nobody asked before, mean of {len(seeds)} splits")
    say("requests seen  right tool first  nDCG@10   change  worst split  offsets served")
    for line in lines:
        say("{seen:>13}  {first:>16.3f}  {ndcg10:>7.3f}  {change:>+7.3f}  {worst:>+11.3f}  {moves:>14}".format(**line))
    say("")
    say(f"What of it is which part, after {lines[-1]['seen']} requests: nDCG@10 and its change")
    for name, value in _parts(lines).items():
        say(f"{name:<34} {value:.3f}  {value - lines[0]['ndcg10']:+.3f}")
    say("")
    none = (
        'With abstain=True, of requests that no tool serves {none:.0%} are answered "none", and {lost:.0%} of others.'
    )
    say(none.format(**lines[-1]))
    say("")
    say(f"The request that gained most, and why: {whys[0]}")
    return [asdict(row) for row in rows]


def _measured(library: Dataset, index: Index, embedder: Embedder, seed: int) -> tuple[list[DemoRow], str]:
    """The rows of the split that *seed* draws, and why the request that gained most finds what it finds in the end."""
    order = np.random.default_rng(seed).permutation(list(library.queries)).tolist()
    middle = (len(order) + 1) // 2
    seen, held = order[:middle], order[middle:]
    texts = [library.queries[query] for query in held]
    vectors, elsewhere = embedder.embed_queries(texts), embedder.embed_queries(unserved())
    search = LearnedToolSearch(index.cards, embedder)

    def ndcg(lists: Iterable[Sequence[str]]) -> Float64:
        """(n,) of the tools that are found for each request held out."""
        return np.array([_ndcg(names, library.qrels[query]) for query, names in zip(held, lists, strict=True)])

    def by_part(weight: float, offsets: Offsets | None) -> float:
        """The mean by one part of what was learned alone."""
        moved = vectors if offsets is None else offsets.apply(vectors)
        found = (best(index.scores(text, x, weight), 10) for text, x in zip(texts, moved, strict=True))
        return float(ndcg([index.cards[row].name for row in rows] for rows in found).mean())

    def refused(requests: FloatArray, offsets: Offsets | None) -> float:
        """The share of requests for which a search that abstains finds nothing."""
        return 0.0 if offsets is None else float(np.mean([not fits(offsets, index, x, None) for x in requests]))

    rows: list[DemoRow] = []
    measured: list[Float64] = []
    learned = 0
    for count in (*(count for count in _SEEN if count < len(seen)), len(seen)):
        for query in seen[learned:count]:
            for answer in library.qrels[query]:
                search.used(library.queries[query], answer)
        learned = count
        lesson, served = search.learn(), search.offsets
        found = [search(text, k=10) for text in texts]
        measured.append(ndcg(found))
        first = float(np.mean([names[0] in library.qrels[query] for query, names in zip(held, found, strict=True)]))
        parts = by_part(weight_of(served), None), by_part(WEIGHT, served)
        nothing = refused(elsewhere, served), refused(vectors, served)
        ndcg10 = float(measured[-1].mean())
        rows.append(DemoRow(seed, count, first, ndcg10, *parts, lesson.weight, lesson.moves, *nothing))
    most = int(np.argmax(measured[-1] - measured[0]))
    return rows, search.explain(texts[most], 3)


def _ndcg(names: Sequence[str], grades: Mapping[str, float]) -> float:
    found = np.array([grades.get(name, 0.0) for name in names])
    return float(ndcg(found, dcg(np.array(sorted(grades.values(), reverse=True)))))


def _parts(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """nDCG@10 after all requests were seen: as found at first, by each part of what was learned alone, by both."""
    first, last = lines[0], lines[-1]
    return {
        "as found at first": first["ndcg10"],
        "the learned weight of BM25 alone": last["by_weight"],
        "the offsets alone": last["by_offsets"],
        "both, as served": last["ndcg10"],
    }


def _line(rows: Sequence[DemoRow], every: Sequence[DemoRow]) -> dict[str, Any]:
    """The means of one count of requests over the splits, and the change since none was seen."""
    first = {row.split: row.ndcg10 for row in every if row.seen == 0}
    changes = [row.ndcg10 - first[row.split] for row in rows]
    return {
        "seen": rows[0].seen,
        **{
            name: float(np.mean([getattr(row, name) for row in rows]))
            for name in ("first", "ndcg10", "by_weight", "by_offsets", "none", "lost")
        },
        "change": float(np.mean(changes)),
        "worst": min(changes),
        "moves": f"{sum(row.moves for row in rows)}/{len(rows)}",
    }


def office(seed: int) -> Dataset:
    """64 tools, 192 requests, and the one tool that works for each, as the habit of this office is.

    Every job can be done with either of two servers that do the same work, such as Gmail and Outlook. The office uses
    one of the two for all jobs; the *seed* draws which. No request names a server.
    """
    tools, requests = _table("tools.tsv"), _table("requests.tsv")
    servers: dict[str, list[str]] = {}
    for tool in tools:
        servers.setdefault(tool["job"], []).append(_server(tool["tool"]))
    rivals = sorted({tuple(pair) for pair in servers.values()})
    choices = np.random.default_rng(seed).integers(0, 2, len(rivals)).tolist()
    used = {pair[choice] for pair, choice in zip(rivals, choices, strict=True)}
    right = {tool["job"]: tool["tool"] for tool in tools if _server(tool["tool"]) in used}
    return Dataset(
        "a made-up office",
        {tool["tool"]: f"{tool['tool']}: {tool['description']}" for tool in tools},
        {f"request-{number}": sample["request"] for number, sample in enumerate(requests)},
        {f"request-{number}": {right[sample["job"]]: 1.0} for number, sample in enumerate(requests)},
    )


def unserved() -> list[str]:
    """40 everyday requests that no tool of the office serves."""
    return [sample["request"] for sample in _table("unserved.tsv")]


def _server(tool: str) -> str:
    return tool.partition(".")[0]


def _table(name: str) -> list[dict[str, str]]:
    text = resources.files("tttembed_tools.demo").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))
