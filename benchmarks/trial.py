"""When does the worker take a version back? Streams of fresh queries under harmless, harmful and outdated offsets.

    python benchmarks/trial.py [--sets a,b] [--embedders minilm,lsa] [--streams 100] [--json OUT.json]

The gains are real: offsets are learned from some queries of a collection, by its labels or by a judge who says the
opposite, and their gains on other queries are what the trial sees, drawn with replacement. A harmless offset has their
sizes with signs that are drawn; a skewed one has the gains themselves without their mean, so that a few large ones make
up for many small losses. An outdated offset has 600 queries with its gains, then all of them turn into losses. About 4
minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from ground import JUDGE, Ground
from harm import HERE, judged
from tttembed_store.worker.trial import WINDOW, LiveGains, LiveTrial, live_gains

from tttembed_rag import Offsets, fit
from tttembed_rag.evaluate.collection import pooled_rewards

SETS = ("metatool", "bfcl-functions", "seal-tools", "chroma-chunks")
# Fresh queries in which no more than 5 % of harmless versions may be taken back, and those that a flip follows.
FRESH = 2000
BEFORE = 600
# Mean losses that are called harmful.
HARMFUL = (-0.12, -0.02)
HELPFUL = 0.015
DOSES = (0.25, 0.5, 1.0)


def taken_back(gains: np.ndarray) -> int | None:
    """After how many of *gains* the version is taken back, None for never; there is a look whenever one is due."""
    trial = LiveTrial(1)
    while trial.due <= len(gains):
        due = trial.due
        last = gains[max(0, due - WINDOW) : due]
        trial = trial.look(LiveGains(last, np.arange(len(last)), np.ones(len(last))), due)
        if trial.contradicted:
            return due
    return None


def fresh_gains(ground: Ground) -> Iterator[tuple[str, np.ndarray]]:
    """Gains of other people's queries under offsets of several doses, learned from labels or from their opposite."""
    rewards = ground.rewards(100)
    fresh = judged(pooled_rewards([ground.bench.collection], [ground.held], 10), JUDGE, ground.seed)
    for scope, opposite in product(("local", "task"), (False, True)):
        learned = fit(replace(rewards, values=1 - rewards.values) if opposite else rewards, scope=scope, gate=False)
        for dose in DOSES:
            doses = [replace(offset, alpha=dose * offset.alpha) for offset in learned.values()]
            offsets = Offsets(doses, width=learned.width)
            yield f"{scope}{' of the opposite' if opposite else ''}, dose {dose}", live_gains(offsets, fresh).gains


def rows(name: str, ground: Ground, streams: int) -> Iterator[dict[str, Any]]:
    """A row for each offset and what is asked of it."""
    rng = np.random.default_rng(ground.seed)
    for offset, gains in fresh_gains(ground):
        asked = {"harmless": gains, "skewed": gains - gains.mean()}
        if HARMFUL[0] <= gains.mean() <= HARMFUL[1]:
            asked["harmful"] = gains
        if gains.mean() >= HELPFUL:
            asked["helpful"], asked["outdated"] = gains, -gains
        for kind, drawn in asked.items():
            stream = rng.choice(drawn, (streams, FRESH))
            if kind == "harmless":
                stream *= rng.choice((-1, 1), stream.shape)
            if kind == "outdated":
                stream[:, :BEFORE] = rng.choice(gains, (streams, BEFORE))
            after = [taken_back(one) for one in stream]
            yield {
                "collection": name,
                "offset": offset,
                "kind": kind,
                "mean": float(drawn.mean()),
                "spread": float(drawn.std()),
                "taken back": float(np.mean([one is not None for one in after])),
                "queries": float(np.median([FRESH * 10 if one is None else one for one in after])),
            }


def main() -> None:
    """Print what happens to each kind of version."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "harm", help="vectors made here")
    parser.add_argument("--sets", type=lambda s: s.split(","), default=list(SETS))
    parser.add_argument("--embedders", type=lambda s: s.split(","), default=["minilm"])
    parser.add_argument("--streams", type=int, default=100, help="for each offset")
    parser.add_argument("--json", type=Path, help="write all rows")
    args = parser.parse_args()
    found = []
    for name, embedder in product(args.sets, args.embedders):
        found += rows(f"{name} {embedder}", Ground.of(args.data, args.cache, name, embedder), args.streams)
    print(f"{'kind':12}{'offsets':>8}{'mean gain':>11}{'taken back':>12}{'at worst':>10}{'median queries':>16}")
    for kind in ("harmless", "skewed", "helpful", "harmful", "outdated"):
        mine = [row for row in found if row["kind"] == kind]
        back = [row["taken back"] for row in mine]
        worst = max(back, default=0) if kind in ("harmless", "skewed", "helpful") else min(back, default=0)
        queries = np.median([row["queries"] for row in mine]) - (BEFORE if kind == "outdated" else 0) if mine else 0
        when = "never" if queries > FRESH else f"{queries:.0f}"
        mean = np.mean([row["mean"] for row in mine]) if mine else 0.0
        print(f"{kind:12}{len(mine):>8}{mean:>+11.3f}{np.mean(back) if back else 0:>12.3f}{worst:>10.2f}{when:>16}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
