"""The main job, shown: an agent's search over tools gets better by being told which tools worked.

The tools are those of a made-up office, the requests are in a person's words. Half of the requests are seen, one after
another: the tool that people finally used is what worked. The other half is only measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.demo.office import office
from tttembed_rag.embedders.cache import CachedEmbedder, VectorCache
from tttembed_rag.embedders.contract import Embedder
from tttembed_rag.embedders.local import minilm
from tttembed_rag.errors import InputError
from tttembed_rag.evaluate.datasets import Dataset
from tttembed_rag.evaluate.measures import dcg
from tttembed_rag.report import drawing
from tttembed_rag.report.heldout import LISTED, HeldOut, Listed, Lists, extremes, summed_up, traffic_of
from tttembed_rag.report.moving import shortened
from tttembed_rag.report.rendering import held_out_drawings, rendered
from tttembed_rag.search.catalog import Card
from tttembed_rag.search.explaining import FoundItem, SearchExplanation
from tttembed_rag.search.index import WEIGHT, Index, best
from tttembed_rag.search.learning import weight_of
from tttembed_rag.search.tools import LearnedToolSearch

# Requests seen, up to half of all.
_SEEN = (0, 25, 50, 100)
_SHOWN = 3
_AT_FIRST = "as found at first"

# By request, the names of the tools that are found for it, best first.
Found: TypeAlias = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class DemoRow:
    """The requests held out, searched after so many others were seen.

    Attributes:
        split: The seed of the split.
        seen: Requests that were seen.
        first: Share of requests for which the right tool is found first.
        ndcg10: nDCG@10.
        by_weight: nDCG@10 with the learned weight of BM25 alone.
        by_offsets: nDCG@10 with the offsets alone.
        weight: The weight of BM25.
        moves: Whether offsets are served.
    """

    split: int
    seen: int
    first: float
    ndcg10: float
    by_weight: float
    by_offsets: float
    weight: float
    moves: bool


@dataclass(frozen=True, slots=True)
class _Sample:
    """A request held out, the tool that works for it with its ranks, and what else is found."""

    title: str
    right: FoundItem
    found: SearchExplanation

    @property
    def tools(self) -> tuple[FoundItem, ...]:
        """The first tools that are found."""
        return self.found.items[:_SHOWN]

    def __str__(self) -> str:
        moved = f"#{self.right.rank_before} -> #{self.right.rank}"
        return f"{self.title}: {self.found.query!r:.80}\n  right: {self.right.name}, {moved}; {self.found.reason}"


def run_tool_demo(
    seeds: Sequence[int],
    out: Path,
    say: Callable[[str], None],
    *,
    library: Callable[[int], Dataset] | None = None,
    embedder: Embedder | None = None,
) -> list[dict[str, Any]]:
    """Run the demo, say it line by line, and return its rows.

    Args:
        seeds: Splits into requests that are seen and requests that are measured.
        out: Folder of the report, created if absent.
        say: Function that takes each line.
        library: Tools, requests, and the tools that people finally used, by the seed of a split; only these differ
            between splits. None is a made-up office.
        embedder: The embedding model; None is all-MiniLM-L6-v2.

    Raises:
        InputError: There is no seed, or a negative one.
    """
    if not seeds or min(seeds) < 0:
        raise InputError(f"seeds: expected numbers >= 0, got {tuple(seeds)}")
    out.mkdir(parents=True, exist_ok=True)
    embedder = CachedEmbedder(embedder or minilm(max_tokens=128), VectorCache.open(None))
    library = library or office
    first = library(seeds[0])
    cards = [Card(name, text) for name, text in first.documents.items()]
    say(f"{len(cards)} tools of {first.name}, {len(first.queries)} requests; people used the right tool")
    say(f"Embedding tools and requests with {embedder.fingerprint} ...")
    index = Index().plus(cards, embedder.embed_documents([card.text for card in cards]))
    rows: list[DemoRow] = []
    samples: list[_Sample] = []
    held_out: HeldOut | None = None
    for seed in seeds:
        split = _Split.of(library(seed), index, embedder, seed)
        measured, before = _rows(split)
        rows += measured
        samples = samples or _samples(split, before)
        held_out = held_out or _held_out(split, before)
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
    for one in samples:
        say(str(one))
    _write_report(out / "report.html", lines, samples, held_out, len(cards), embedder.fingerprint)
    say("")
    say(f"Report: {out / 'report.html'}")
    return [asdict(row) for row in rows]


@dataclass(frozen=True, slots=True, eq=False)
class _Split:
    """One split of the requests.

    Attributes:
        seed: Its seed.
        library: Tools, requests, and the tools that people finally used.
        index: The tools as they are searched.
        embedder: The embedding model, which remembers.
        search: The search that learns.
        seen: The ids of the requests that are seen, in order.
        held: The ids of those that are measured.
    """

    seed: int
    library: Dataset
    index: Index
    embedder: Embedder
    search: LearnedToolSearch
    seen: list[str]
    held: list[str]

    @classmethod
    def of(cls, library: Dataset, index: Index, embedder: Embedder, seed: int) -> _Split:
        """The halves that *seed* draws, and a search that has seen nothing."""
        order = np.random.default_rng(seed).permutation(list(library.queries)).tolist()
        middle = (len(order) + 1) // 2
        search = LearnedToolSearch(index.cards, embedder)
        return cls(seed, library, index, embedder, search, order[:middle], order[middle:])

    def found(self, k: int = 10) -> Found:
        """What is found for the requests that are measured."""
        return {query: self.search(self.library.queries[query], k=k) for query in self.held}

    def found_by(self, *, weight: bool, offsets: bool) -> Found:
        """The same by the learned weight of BM25, by the offsets, by both or by neither."""
        served = self.search.offsets
        vectors = self.embedder.embed_queries([self.library.queries[query] for query in self.held])
        if offsets and served is not None:
            vectors = served.apply(vectors)
        counts = weight_of(served) if weight else WEIGHT
        lists: dict[str, list[str]] = {}
        for query, vector in zip(self.held, vectors, strict=True):
            order = best(self.index.scores(self.library.queries[query], vector, counts), 10)
            lists[query] = [self.index.cards[row].name for row in order]
        return lists

    def measured(self, found: Found) -> NDArray[np.float64]:
        """(n,) nDCG@10 of what is found for each request."""
        return np.array([_ndcg(names, self.library.qrels[query]) for query, names in found.items()])


def _parts(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """nDCG@10 after all requests were seen: as found at first, by each part of what was learned alone, by both."""
    first, last = lines[0], lines[-1]
    return {
        _AT_FIRST: first["ndcg10"],
        "the learned weight of BM25 alone": last["by_weight"],
        "the offsets alone": last["by_offsets"],
        "both, as served": last["ndcg10"],
    }


def _rows(split: _Split) -> tuple[list[DemoRow], Found]:
    """What is found after more and more requests, and what was found for each before any was seen."""
    library, search, seen = split.library, split.search, split.seen
    rows: list[DemoRow] = []
    before: Found = {}
    told = 0
    for count in (*(count for count in _SEEN if count < len(seen)), len(seen)):
        for query in seen[told:count]:
            for answer in library.qrels[query]:
                search.used(library.queries[query], answer)
        told = count
        lesson = search.learn()
        found = split.found()
        before = before or found
        first = np.mean([names[0] in library.qrels[query] for query, names in found.items()])
        both, by_weight, by_offsets = (
            float(split.measured(names).mean())
            for names in (
                found,
                split.found_by(weight=True, offsets=False),
                split.found_by(weight=False, offsets=True),
            )
        )
        rows.append(DemoRow(split.seed, count, float(first), both, by_weight, by_offsets, lesson.weight, lesson.moves))
    return rows, before


def _ndcg(names: Sequence[str], grades: Mapping[str, float]) -> float:
    found = dcg(np.array([grades.get(name, 0.0) for name in names]))
    return float(found / dcg(np.array(sorted(grades.values(), reverse=True)[:10])))


def _samples(split: _Split, before: Found) -> list[_Sample]:
    """Of the requests held out the one that gained most, the one in the middle of those that changed, and the last."""
    library, search = split.library, split.search
    gains = dict(zip(before, np.round(split.measured(split.found()) - split.measured(before), 6).tolist(), strict=True))
    order = sorted(gains, key=lambda query: -gains[query])
    changed = [query for query in order if gains[query]] or order
    gain, lose = (sum(sign * one > 0 for one in gains.values()) for sign in (1, -1))
    titles = {
        f"Gained most ({gain} of {len(gains)} gain)": order[0],
        f"In between ({len(gains) - gain - lose} stay as they are)": changed[len(changed) // 2],
        f"Lost most ({lose} lose)": order[-1],
    }
    found = {title: search.explain(library.queries[query], len(search.names)) for title, query in titles.items()}
    return [
        _Sample(title, next(tool for tool in found[title].items if tool.name in library.qrels[query]), found[title])
        for title, query in titles.items()
    ]


def _line(rows: Sequence[DemoRow], every: Sequence[DemoRow]) -> dict[str, Any]:
    """The means of one count of requests over the splits, and the change since none was seen."""
    first = {row.split: row.ndcg10 for row in every if row.seen == 0}
    changes = [row.ndcg10 - first[row.split] for row in rows]
    return {
        "seen": rows[0].seen,
        **{
            name: float(np.mean([getattr(row, name) for row in rows]))
            for name in ("first", "ndcg10", "by_weight", "by_offsets")
        },
        "change": float(np.mean(changes)),
        "worst": min(changes),
        "splits": len(rows),
        "moves": f"{sum(row.moves for row in rows)}/{len(rows)}",
        "changed": any(row.moves or row.weight != WEIGHT for row in rows),
    }


def _held_out(split: _Split, before: Found) -> HeldOut:
    """What was learned does to the requests that it was not learned from."""
    library, search, after = split.library, split.search, split.found(LISTED)
    # What a judge makes of it that is asked at every request: the tools found before, the ones that work first.
    reranked = {
        query: sorted(names, key=lambda name: -library.qrels[query].get(name, 0.0)) for query, names in before.items()
    }
    raw, served, rerank = map(split.measured, (before, after, reranked))
    rows = {name: row for row, name in enumerate(library.documents)}
    was, now = (np.array([[rows[name] for name in names] for names in found.values()]) for found in (before, after))
    summary = summed_up(
        raw,
        served,
        rerank,
        measure="by the tools that people finally used",
        method=f"Half of the requests are served by what was learned from the other half (split {split.seed}).",
        traffic=traffic_of(was, now, len(rows)),
    )
    queries = list(before)
    worst, best = (
        tuple(
            _lists(library, search, query, before[query], after[query], before_after=(raw[place], served[place]))
            for place in some
            for query in [queries[place]]
        )
        for some in extremes(served - raw)
    )
    return replace(summary, worst=worst, best=best)


def _lists(
    library: Dataset,
    search: LearnedToolSearch,
    query: str,
    before: Sequence[str],
    after: Sequence[str],
    *,
    before_after: tuple[float, float],
) -> Lists:
    """The tools found *before* and *after*; learning also changes what BM25 weighs, so ranks stand in for scores."""
    ranks = {tool.name: (tool.rank_before, tool.rank) for tool in search.explain(library.queries[query], LISTED).items}
    ranks |= {name: (place, LISTED + place) for place, name in enumerate(before, 1) if name not in after}
    return Lists(
        query_id=query,
        query=shortened(library.queries[query]),
        task="default",
        offset="",
        before=float(before_after[0]),
        after=float(before_after[1]),
        candidates=tuple(
            Listed(
                document=shortened(name),
                text=shortened(library.documents[name], 100),
                reward=library.qrels[query].get(name),
                rank=was,
                score=-was,
                lift=was - now,
            )
            for name, (was, now) in sorted(ranks.items(), key=lambda one: one[1])
        ),
    )


def _write_report(
    path: Path,
    lines: Sequence[dict[str, Any]],
    samples: Sequence[_Sample],
    held_out: HeldOut | None,
    tools: int,
    embedder: str,
) -> None:
    """Write one file with its drawings inside; its texts are escaped."""
    marks = [drawing.Mark(line["change"], filled=line["changed"]) for line in lines]
    ends = [f"{line['seen']} requests" for line in (lines[0], lines[-1])]
    html = rendered(
        "demo/tools.html.jinja",
        extra="eval",
        interactive=False,
        lines=lines,
        samples=samples,
        held_out=held_out,
        drawings=held_out_drawings(held_out),
        tools=tools,
        embedder=embedder,
        parts=drawing.levels("nDCG@10", _parts(lines), (_AT_FIRST,)),
        course=drawing.course("Change of nDCG@10 by requests seen", marks, *ends),
    )
    path.write_text(html, encoding="utf-8")
