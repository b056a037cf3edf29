"""Can a fit tell what more judging would bring? Twice as many judged queries, forecast and measured.

    python benchmarks/ahead.py [--sets a,b] [--judges qrels+.05,ce-minilm-multi] [--seeds 0,1,2] [--json OUT.json]
        [--data DIR] [--cache DIR]

The offset of n judged queries is learned from half of them and from four fifths, and the loss of the others falls by so
much. Two curves go through these two falls: a power law, and one that saturates. The held-out gain times what the
curves say of 2 n is a range. It is compared with the gain of 2 n judged queries on queries that nobody judged, in the
judge's terms. Collections and judges are those of `harm.py`, with all-MiniLM-L6-v2.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harm import CONFIRMATION, DEVELOPMENT, HERE, HOLDOUT, STORED, Bench, bench, judged
from tttembed_rag import Rewards, fit
from tttembed_rag.evaluate.collection import pooled_rewards, split
from tttembed_rag.evaluate.datasets import QRELS
from tttembed_rag.fitting.local import Local
from tttembed_rag.fitting.optima import private_optima
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.gate.case import Case, gated

JUDGED, DEPTH = (32, 64, 100, 200, 300), 10
# The shares of the queries that the two falls are learned from.
HALF, FIFTHS = 0.5, 0.8
NEAR = 0.01


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "harm", help="vectors made here")
    parser.add_argument("--json", type=Path, help="the figures")
    for name, values in {"sets": [*DEVELOPMENT, *CONFIRMATION], "judges": ["qrels+.05", "ce-minilm-multi"]}.items():
        parser.add_argument(f"--{name}", type=lambda s: s.split(","), default=values)
    parser.add_argument("--seeds", type=lambda s: [int(part) for part in s.split(",")], default=[0, 1, 2])
    args = parser.parse_args()
    rows: list[dict[str, float]] = []
    for name, judge, seed in product(args.sets, args.judges, args.seeds):
        if judge in STORED and not (args.data / name / "scores" / f"{judge}.tsv").is_file():
            continue
        searched = bench(args.data, args.cache, name, "minilm", judge if judge in STORED else QRELS)
        rows += forecasts(searched, judge, seed)
    found = {str(n): summed_up([row for row in rows if row["judged"] == n]) for n in JUDGED}
    print("judged cells    gain   of 2n            range  in it   near     r  r today")
    for n, of in found.items():
        told = f"{of['low']:+.3f} to {of['high']:+.3f}"
        print(
            f"{n:>6} {of['cells']:>5} {of['now']:>+7.3f} {of['later']:>+7.3f} {told:>16} {of['inside']:>6.0%} "
            f"{of['near']:>6.0%} {of['r']:>5.2f} {of['r today']:>8.2f}"
        )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def forecasts(searched: Bench, judge: str, seed: int) -> Iterator[dict[str, float]]:
    """By count of judged queries: the range, and what twice as many gain."""
    pool, held = split(searched.collection, seed, HOLDOUT)

    def rewards(rows: np.ndarray) -> Rewards:
        return judged(pooled_rewards([searched.collection], [rows], DEPTH), judge, seed)

    others = Case.of(asked := rewards(held), gated(Recipe(), asked))
    base = others.ndcg()
    for n in JUDGED:
        if len(pool) < 2 * n or (told := forecast(rewards(pool[:n]))) is None:
            continue
        gains = []
        for count in (n, 2 * n):
            offsets = fit(rewards(pool[:count]), trusted=True)
            unit = asked.queries.unit
            moved = offsets.apply(unit, task=searched.collection.dataset.name)
            gains.append(float((others.ndcg((moved - unit).astype(np.float64)) - base).mean()))
        held_out, low, high = told
        yield {"judged": n, "held out": held_out, "low": low, "high": high, "now": gains[0], "later": gains[1]}


def forecast(rewards: Rewards) -> tuple[float, float, float] | None:
    """The held-out gain of the local offset, and the range of that with twice as many queries; None without a fall."""
    case = Case.of(replace(rewards, trusted=True), gated(Recipe(), rewards))
    optima = private_optima(case.widened, case.recipe)
    weights = case.voices * optima.converged
    local = Local.of(case.widened, optima.offsets, case.recipe.kappa, weights=weights, groups=case.groups)
    halves = np.random.default_rng(0).permutation(int(case.groups.max()) + 1)[case.groups] % 2
    few, most = (float(np.average(case.falls(local.held_out(fold)), weights=weights)) for fold in (halves, case.fold))
    gain = float(np.average(case.ndcg(local.held_out(case.fold)) - case.ndcg(), weights=weights))
    if most <= 0:
        return None
    few = min(max(few, 1e-6), most)
    power = (2 / FIFTHS) ** min(1.0, np.log(most / few) / np.log(FIFTHS / HALF))
    slope = (1 / few - 1 / most) / (1 / HALF - 1 / FIFTHS)  # 1 / fall is a line in 1 / n
    rest = 1 / most - slope / FIFTHS + slope / 2
    saturating = 1 / most / rest if rest > 0 else power
    ends = sorted((gain * float(power), gain * float(saturating)))
    return gain, ends[0], ends[1]


def summed_up(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Means, how often the gain of 2 n lies in the range or near it, and what correlates with it."""
    of = {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}
    if not of:
        return {"cells": 0}
    low, high, later = of["low"], of["high"], of["later"]
    near = (later >= low - NEAR) & (later <= high + NEAR)
    return {
        "cells": len(rows),
        **{name: float(of[name].mean()) for name in ("now", "later", "low", "high")},
        "inside": float(((later >= low) & (later <= high)).mean()),
        "near": float(near.mean()),
        "r": float(np.corrcoef((low + high) / 2, later)[0, 1]),
        "r today": float(np.corrcoef(of["held out"], later)[0, 1]),
    }


if __name__ == "__main__":
    main()
