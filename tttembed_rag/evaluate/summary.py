"""The rows of `tttembed eval` summed up: a table of means, and a sentence for each data set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from tttembed_rag.evaluate.measures import LEAST_GAIN
from tttembed_rag.offsets.evidence import without_alike

Rows: TypeAlias = Sequence[dict[str, Any]]
# By data set, population, queries asked to be rewarded, and what was measured: the rows of all splits.
Cells: TypeAlias = dict[tuple[str, str, int, str], list[dict[str, Any]]]

# What is averaged over splits, and over data sets.
_AVERAGED = ("raw_ndcg10", "ndcg10", "delta", "rerank_delta", "harmed_fraction", "rewarded_queries")
# What the columns of the table mean.
_LEGEND = (
    "raw: nDCG@10 without offsets; nDCG: with them; delta: the difference, worst: of the worst split. share: of the",
    "gain that direct rerank would have if each of these queries were judged. harmed: queries with a lower nDCG@10",
    "than before. published: splits on which something was served. heldout: queries that were not judged; rewarded:",
    "those that were, and how many. rerank: the judge orders the candidates of each query.",
)


def cells_of(rows: Iterable[dict[str, Any]]) -> Cells:
    """The *rows* of held-out and of rewarded queries, those of all splits together; equal numbers of queries once."""
    cells: Cells = {}
    for row in rows:
        if row["population"] != "all":
            label = f"{row['scope']}{'' if row['scope'] in ('raw', 'rerank', 'auto') or row['gated'] else ' ungated'}"
            cells.setdefault((row["dataset"], row["population"], row["rewarded"], label), []).append(row)
    judged = {key: (*key[:2], key[3], sum(row["rewarded_queries"] for row in cell)) for key, cell in cells.items()}
    return {key: cells[key] for key in {same: key for key, same in reversed(judged.items())}.values()}


def table(cells: Cells) -> str:
    """Means over splits, one line per cell, then means over data sets where there are several."""
    judge = next(iter(cells.values()))[0]
    lines = [
        f"nDCG@10, mean of seeds; rewards: {judge['rewards']}{' (simulated judge)' if judge['simulated'] else ''}",
        (
            f"{'data set':<24}{'queries':<10}{'rewarded':>8}  {'scope':<15}{'raw':>7}{'nDCG':>7}{'delta':>8}"
            f"{'worst':>8}{'share':>7}{'harmed':>8}{'published':>11}"
        ),
    ]
    means = {key: mean_of(cell) for key, cell in cells.items()}
    lines += [_line(key, mean) for key, mean in sorted(means.items(), key=lambda item: item[0])]
    if len({dataset for dataset, *_ in cells}) > 1:
        sets: Cells = {}
        for (_, population, rewarded, label), mean in means.items():
            sets.setdefault(("mean of the sets", population, rewarded, label), []).append(mean)
        lines += [_line(key, mean_of(of_sets)) for key, of_sets in sorted(sets.items(), key=lambda item: item[0])]
    return "\n".join([*lines, "", *_LEGEND])


def mean_of(rows: Rows) -> dict[str, Any]:
    """The mean of rows that weigh the same, with the worst change, its share of that of direct rerank in words, and
    how many are published.
    """
    mean: dict[str, Any] = {key: sum(row[key] for row in rows) / len(rows) for key in _AVERAGED}
    whole = mean["rerank_delta"]
    mean["share"] = f"{mean['delta'] / whole:.0%}" if whole >= LEAST_GAIN else "-"
    mean["worst"] = min(row["worst" if "worst" in row else "delta"] for row in rows)
    defaults = {"published": 0, "splits": 1}
    return mean | {key: sum(row.get(key, default) for row in rows) for key, default in defaults.items()}


def conclusions(cells: Cells) -> list[str]:
    """A sentence for each data set: what `auto` did to queries that nobody judged, with most judged queries."""
    most: dict[str, tuple[int, Rows]] = {}
    for (dataset, population, rewarded, label), cell in cells.items():
        if (population, label) == ("heldout", "auto") and rewarded >= most.get(dataset, (0, []))[0]:
            most[dataset] = rewarded, cell
    return [_conclusion(dataset, cell) for dataset, (_, cell) in sorted(most.items())]


def _conclusion(dataset: str, cell: Rows) -> str:
    mean = mean_of(cell)
    of = f"{dataset}: with {mean['rewarded_queries']:.0f} judged queries, auto"
    if not mean["published"]:
        codes = sorted({code for row in cell for code in re.findall(r"TTT-\w+|nothing to gain", row["reason"])})
        return f"{of} serves nothing, and nothing changes ({', '.join(codes)})."
    low, high = (sum(row[key] for row in cell) / len(cell) for key in ("ci_low", "ci_high"))
    verdict = "helps" if low > 0 else "harms" if high < 0 else "changes little for"
    kept = "" if mean["share"] == "-" else f", {mean['share']} of what direct rerank of these queries would gain"
    change = f"{mean['delta']:+.3f} nDCG@10 [{low:+.3f}, {high:+.3f}]"
    return f"{of} {verdict} queries that nobody judged: {change}{kept}.{without_alike(cell[0]['left_out'])}"


def _line(cell: tuple[str, str, int, str], mean: dict[str, Any]) -> str:
    dataset, population, _, label = cell
    rewarded, published = mean["rewarded_queries"], f"{mean['published']}/{mean['splits']}"
    return (
        f"{dataset:<24.24}{population:<10}{rewarded:>8.0f}  {label:<15}{mean['raw_ndcg10']:>7.3f}{mean['ndcg10']:>7.3f}"
        f"{mean['delta']:>+8.3f}{mean['worst']:>+8.3f}{mean['share']:>7}{mean['harmed_fraction']:>8.1%}{published:>11}"
    )
