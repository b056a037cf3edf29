"""The main job, shown: an agent's search over tools gets better by being told which tools worked.

The tools are those of a made-up office, the requests are in a person's words. Half of the requests are seen, one after
another: the tool that people finally used is what worked. The other half is only measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tttembed_rag.embedders.cache import CachedEmbedder, VectorCache
from tttembed_rag.embedders.contract import Embedder
from tttembed_rag.embedders.smallmodel import minilm
from tttembed_rag.errors import InputError
from tttembed_rag.evaluate.datasets import Dataset
from tttembed_rag.evaluate.page import drawing
from tttembed_rag.evaluate.page.rendering import rendered
from tttembed_rag.fitting.measures import dcg, ndcg
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.vectors.checks import FloatArray
from tttembed_rag.vectors.rows import Float64
from tttembed_tools.catalog import Card
from tttembed_tools.demo.office import office, unserved
from tttembed_tools.explaining import FoundItem, SearchExplanation
from tttembed_tools.index import WEIGHT, Index, best
from tttembed_tools.learning import fits, weight_of
from tttembed_tools.tools import LearnedToolSearch

# Requests seen, up to half of all.
_SEEN = (0, 25, 50, 100)
_SHOWN = 3
_AT_FIRST = "as found at first"


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


class _Sample(NamedTuple):
    """A request held out, the tool that works for it with its ranks, and what is found."""

    title: str
    right: FoundItem
    found: SearchExplanation

    def __str__(self) -> str:
        moved = f"#{self.right.rank_before} -> #{self.right.rank}"
        return f"{self.title}: {self.found.query!r:.80}\n  right: {self.right.name}, {moved}"


def run_tool_demo(
    seeds: Sequence[int],
    out: Path,
    say: Callable[[str], None],
    *,
    library: Callable[[int], Dataset] | None = None,
    embedder: Embedder | None = None,
) -> list[dict[str, Any]]:
    """Run the demo, say it line by line, write a page of it, and return its rows.

    Each of *seeds* splits requests into those that are seen and those that are measured. *library* gives tools,
    requests and the tools that people finally used by the seed of a split, and only these differ between splits; by
    default it is a made-up office. The model is by default all-MiniLM-L6-v2; the page is in the folder *out*.

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
    for seed in seeds:
        of_split, explained = _measured(library(seed), index, embedder, seed)
        rows += of_split
        samples = samples or explained
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
    for sample in samples:
        say(str(sample))
    reasons = list(dict.fromkeys(sample.found.reason for sample in samples))
    for reason in reasons:
        say(f"Why: {reason}")
    marks = [(line["change"], line["changed"]) for line in lines]
    ends = [f"{line['seen']} requests" for line in (lines[0], lines[-1])]
    html = rendered(
        "tttembed_tools.demo/tools.html.jinja",
        lines=lines,
        samples=samples,
        reasons=reasons,
        shown=_SHOWN,
        tools=len(cards),
        embedder=embedder.fingerprint,
        parts=drawing.levels("nDCG@10", _parts(lines), (_AT_FIRST,)),
        course=drawing.course("Change of nDCG@10 by requests seen", marks, *ends),
    )
    (out / "report.html").write_text(html, encoding="utf-8")
    say("")
    say(f"Report: {out / 'report.html'}")
    return [asdict(row) for row in rows]


def _measured(library: Dataset, index: Index, embedder: Embedder, seed: int) -> tuple[list[DemoRow], list[_Sample]]:
    """The rows of the split that *seed* draws, and three of its requests explained in the end."""
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

    def refused(asked: FloatArray, offsets: Offsets | None) -> float:
        """The share of requests for which a search that abstains finds nothing."""
        return 0.0 if offsets is None else float(np.mean([not fits(offsets, index, x, None) for x in asked]))

    rows: list[DemoRow] = []
    measured: list[Float64] = []
    told = 0
    for count in (*(count for count in _SEEN if count < len(seen)), len(seen)):
        for query in seen[told:count]:
            for answer in library.qrels[query]:
                search.used(library.queries[query], answer)
        told = count
        lesson, served = search.learn(), search.offsets
        found = [search(text, k=10) for text in texts]
        measured.append(ndcg(found))
        first = float(np.mean([names[0] in library.qrels[query] for query, names in zip(held, found, strict=True)]))
        parts = by_part(weight_of(served), None), by_part(WEIGHT, served)
        nothing = refused(elsewhere, served), refused(vectors, served)
        ndcg10 = float(measured[-1].mean())
        rows.append(DemoRow(seed, count, first, ndcg10, *parts, lesson.weight, lesson.moves, *nothing))
    gains = dict(zip(held, np.round(measured[-1] - measured[0], 6).tolist(), strict=True))
    return rows, _samples(library, search, gains)


def _ndcg(names: Sequence[str], grades: Mapping[str, float]) -> float:
    found = np.array([grades.get(name, 0.0) for name in names])
    return float(ndcg(found, dcg(np.array(sorted(grades.values(), reverse=True)))))


def _samples(library: Dataset, search: LearnedToolSearch, gains: Mapping[str, float]) -> list[_Sample]:
    """Of the requests held out the one that gained most, the one in the middle of those that changed, and the last."""
    order = sorted(gains, key=lambda query: -gains[query])
    changed = [query for query in order if gains[query]] or order
    gain, lose = (sum(sign * gain > 0 for gain in gains.values()) for sign in (1, -1))
    samples = []
    for title, query in (
        (f"Gained most ({gain} of {len(gains)} gain)", order[0]),
        (f"In between ({len(gains) - gain - lose} stay as they are)", changed[len(changed) // 2]),
        (f"Lost most ({lose} lose)", order[-1]),
    ):
        found = search.explain(library.queries[query], len(search.names))
        right = next(tool for tool in found.items if tool.name in library.qrels[query])
        samples.append(_Sample(title, right, found))
    return samples


def _parts(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """nDCG@10 after all requests were seen: as found at first, by each part of what was learned alone, by both."""
    first, last = lines[0], lines[-1]
    return {
        _AT_FIRST: first["ndcg10"],
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
        "splits": len(rows),
        "moves": f"{sum(row.moves for row in rows)}/{len(rows)}",
        "changed": any(row.moves or row.weight != WEIGHT for row in rows),
    }
