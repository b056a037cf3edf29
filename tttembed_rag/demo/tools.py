"""The main job, shown: an agent's search over thousands of tools gets better by being told which tools worked.

The tools are the public callables of this machine's standard library, the requests are how-to questions in a person's
words. Half of the requests are seen, one after another: the callable that people finally used is what worked. The other
half is only measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tttembed_rag.demo.callables import standard_library
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
from tttembed_rag.tools.catalog import Card
from tttembed_rag.tools.explaining import FoundTool, ToolExplanation
from tttembed_rag.tools.index import WEIGHT
from tttembed_rag.tools.search import LearnedToolSearch
from tttembed_rag.vectors.checks import FloatArray

_EMBEDDER = "all-MiniLM-L6-v2"
# Tokens read of a card and of a request. A callable's purpose stands in its first lines; that halves the wait.
_CARD_TOKENS, _REQUEST_TOKENS = 64, 128
# Requests seen, up to half of all.
_SEEN = (0, 25, 50, 100)
_SHOWN = 3

# By request, the names of the tools that are found for it, best first.
Found: TypeAlias = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class DemoRow:
    """The requests held out, searched after so many others were seen.

    Attributes:
        split: The seed of the split.

        seen: Requests that were seen.

        recall5: Share of requests with an answer among the first five tools.

        ndcg10: nDCG@10.

        weight: The weight of BM25.

        moves: Whether offsets are served.
    """

    split: int
    seen: int
    recall5: float
    ndcg10: float
    weight: float
    moves: bool


@dataclass(frozen=True, slots=True)
class _Sample:
    """A request held out, the tool that works for it with its ranks, and what else is found."""

    title: str
    right: FoundTool
    found: ToolExplanation

    @property
    def tools(self) -> tuple[FoundTool, ...]:
        """The first tools that are found."""
        return self.found.tools[:_SHOWN]

    def __str__(self) -> str:
        moved = f"#{self.right.rank_before} -> #{self.right.rank}"
        return f"{self.title}: {self.found.query!r:.80}\n  right: {self.right.name}, {moved}; {self.found.reason}"


class _Reader:
    """all-MiniLM-L6-v2 that reads the beginning of a card, and all of a request."""

    fingerprint = _EMBEDDER

    def __init__(self) -> None:
        self._cards = minilm(max_tokens=_CARD_TOKENS, progress=sys.stderr.isatty())
        self._requests = minilm(max_tokens=_REQUEST_TOKENS)

    def embed_queries(self, texts: Sequence[str]) -> FloatArray:
        """Their vectors."""
        return self._requests.embed_queries(texts)

    def embed_documents(self, texts: Sequence[str]) -> FloatArray:
        """Their vectors."""
        return self._cards.embed_documents(texts)


def run_tool_demo(
    seeds: Sequence[int],
    out: Path,
    say: Callable[[str], None],
    *,
    library: Dataset | None = None,
    embedder: Embedder | None = None,
) -> list[dict[str, Any]]:
    """Run the demo, say it line by line, and return its rows.

    Args:
        seeds: Splits into requests that are seen and requests that are measured.

        out: Folder of the report, created if absent.

        say: Function that takes each line.

        library: Tools, requests, and the tools that people finally used; None is the standard library of this Python.

        embedder: The embedding model; None is all-MiniLM-L6-v2.

    Raises:
        InputError: There is no seed, or a negative one.
    """
    if not seeds or min(seeds) < 0:
        raise InputError(f"seeds: expected numbers >= 0, got {tuple(seeds)}")
    out.mkdir(parents=True, exist_ok=True)
    library = library or standard_library()
    embedder = CachedEmbedder(embedder or _Reader(), VectorCache.open(None))
    say(f"{len(library.documents)} tools ({library.name}), {len(library.queries)} requests; people used the right tool")
    say(f"Embedding the tools with {embedder.fingerprint}, about a minute on two cores ...")
    rows: list[DemoRow] = []
    samples: list[_Sample] = []
    held_out: HeldOut | None = None
    for seed in seeds:
        search = LearnedToolSearch([Card(name, text) for name, text in library.documents.items()], embedder)
        measured, before = _split(library, search, seed)
        rows += measured
        samples = samples or _samples(library, search, before)
        held_out = held_out or _held_out(library, search, before, seed)
    say("")
    say(f"Requests that nobody asked before, mean of {len(seeds)} splits")
    say("requests seen  an answer among 5  nDCG@10   change  worst split  offsets served")
    lines = [_line([row for row in rows if row.seen == seen], rows) for seen in sorted({row.seen for row in rows})]
    for line in lines:
        say(
            "{seen:>13}  {recall5:>16.3f}  {ndcg10:>7.3f}  {change:>+7.3f}  {worst:>+11.3f}  {moves:>14}".format(**line)
        )
    say("")
    for one in samples:
        say(str(one))
    _write_report(out / "report.html", lines, samples, held_out, len(library.documents), embedder.fingerprint)
    say("")
    say(f"Report: {out / 'report.html'}")
    return [asdict(row) for row in rows]


def _halves(library: Dataset, seed: int) -> tuple[list[str], list[str]]:
    """The ids of requests that are seen, in order, and of those that are measured."""
    order = np.random.default_rng(seed).permutation(list(library.queries)).tolist()
    return order[: (len(order) + 1) // 2], order[(len(order) + 1) // 2 :]


def _split(library: Dataset, search: LearnedToolSearch, seed: int) -> tuple[list[DemoRow], Found]:
    """What is found after more and more requests, and what was found for each before any was seen."""
    seen, held = _halves(library, seed)
    rows: list[DemoRow] = []
    before: Found = {}
    told = 0
    for count in (*(count for count in _SEEN if count < len(seen)), len(seen)):
        for query in seen[told:count]:
            for answer in library.qrels[query]:
                search.used(library.queries[query], answer)
        told = count
        lesson = search.learn()
        found = {query: search(library.queries[query], k=10) for query in held}
        measures = [_ndcg(names, library.qrels[query]) for query, names in found.items()]
        before = before or found
        recall = np.mean([bool(set(names[:5]) & library.qrels[query].keys()) for query, names in found.items()])
        mean = float(np.mean(measures))
        rows.append(DemoRow(seed, count, float(recall), mean, lesson.weight, lesson.moves))
    return rows, before


def _ndcg(names: Sequence[str], grades: Mapping[str, float]) -> float:
    found = dcg(np.array([grades.get(name, 0.0) for name in names]))
    return float(found / dcg(np.array(sorted(grades.values(), reverse=True)[:10])))


def _samples(library: Dataset, search: LearnedToolSearch, before: Found) -> list[_Sample]:
    """Of the requests held out the one that gained most, the one in the middle of those that changed, and the last."""
    gains = {
        query: round(_ndcg(search(library.queries[query], k=10), library.qrels[query]) - _ndcg(names, grades), 6)
        for query, names in before.items()
        for grades in [library.qrels[query]]
    }
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
        _Sample(title, next(tool for tool in found[title].tools if tool.name in library.qrels[query]), found[title])
        for title, query in titles.items()
    ]


def _line(rows: Sequence[DemoRow], every: Sequence[DemoRow]) -> dict[str, Any]:
    """The means of one count of requests over the splits, and the change since none was seen."""
    first = {row.split: row.ndcg10 for row in every if row.seen == 0}
    changes = [row.ndcg10 - first[row.split] for row in rows]
    return {
        "seen": rows[0].seen,
        "recall5": float(np.mean([row.recall5 for row in rows])),
        "ndcg10": float(np.mean([row.ndcg10 for row in rows])),
        "change": float(np.mean(changes)),
        "worst": min(changes),
        "moves": f"{sum(row.moves for row in rows)}/{len(rows)}",
        "changed": any(row.moves or row.weight != WEIGHT for row in rows),
    }


def _held_out(library: Dataset, search: LearnedToolSearch, before: Found, seed: int) -> HeldOut:
    """What was learned does to the requests that it was not learned from."""
    after = {query: search(library.queries[query], k=LISTED) for query in before}
    # What a judge makes of it that is asked at every request: the tools found before, the ones that work first.
    reranked = {
        query: sorted(names, key=lambda name: -library.qrels[query].get(name, 0.0)) for query, names in before.items()
    }
    raw, served, rerank = (
        np.array([_ndcg(names, library.qrels[query]) for query, names in found.items()])
        for found in (before, after, reranked)
    )
    rows = {name: row for row, name in enumerate(library.documents)}
    was, now = (np.array([[rows[name] for name in names] for names in found.values()]) for found in (before, after))
    summary = summed_up(
        raw,
        served,
        rerank,
        measure="by the tools that people finally used",
        method=f"Half of the requests are served by what was learned from the other half (split {seed}).",
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
    ranks = {tool.name: (tool.rank_before, tool.rank) for tool in search.explain(library.queries[query], LISTED).tools}
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
        course=drawing.course("Change of nDCG@10 by requests seen", marks, *ends),
    )
    path.write_text(html, encoding="utf-8")
