"""Offsets as lines that people read."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import chain
from typing import Any

from tttembed_rag.cli.group import say
from tttembed_rag.offsets.offset import Offset
from tttembed_rag.offsets.offsets import Offsets

# Tasks that have a line of their own.
_TASKS = 10


def tell(offsets: Offsets, *, everything: bool, verbose: bool, as_json: bool) -> None:
    """Print the judge that gave the rewards, warnings, a line for each task, and how many private offsets there are.

    The line of a task is that of the offset that is served, else that of the first that is not, with the reason. With
    *everything*, each offset has a line instead; *verbose*, statistics behind it; *as_json*, a JSON object and nothing
    else.
    """
    for line in () if as_json else _origin(offsets):
        say(line)
    if everything or as_json:
        for offset in offsets.values():
            for line in (
                [json.dumps(offset_facts(offset, offsets))] if as_json else offset_lines(offset, verbose=verbose)
            ):
                say(line)
        return
    shared: dict[str | None, list[Offset]] = {}
    private = [offset for offset in offsets.values() if offset.query_id is not None]
    for offset in offsets.values():
        if offset.query_id is None:
            shared.setdefault(offset.task, []).append(offset)
    listed = [[offset for offset in of_task if offset.served] or of_task[:1] for of_task in shared.values()]
    listed.sort(key=lambda of_task: not of_task[0].served)
    for offset in chain.from_iterable(listed[:_TASKS]):
        for line in offset_lines(offset, verbose=verbose):
            say(line)
    if left := listed[_TASKS:]:
        served = sum(of_task[0].served for of_task in left)
        say(f"and {len(left)} more tasks, {served} of them served (--all lists them)")
    if len(private) == 1:
        for line in offset_lines(private[0], verbose=verbose):
            say(line)
    elif private:
        served, tasks = sum(offset.served for offset in private), len({offset.task for offset in private})
        of = f"task {private[0].task}, {private[0].evidence}" if tasks == 1 else f"{tasks} tasks"
        say(f"query:...: {len(private)} private offsets, {served} served, of {of} (--all lists them)")


def _origin(offsets: Offsets) -> list[str]:
    """The judge that gave the rewards, what is said of the cosines, and warnings."""
    judge, warnings = offsets.settings.get("judge"), str(offsets.settings.get("warning", "")).splitlines()
    of_judge = [] if judge is None else [f"rewards: {judge}"]
    of_cosines = [offsets.crowded] if offsets.crowded else []
    return [*of_judge, *of_cosines, *(f"warning: {warning}" for warning in warnings)]


def offset_facts(offset: Offset, offsets: Offsets) -> dict[str, Any]:
    """One of *offsets* as a JSON object, without its vector."""
    return {
        **asdict(offset.evidence),
        **{name: getattr(offset, name) for name in ("key", "served", "alpha", "n")},
        "measured": offset.evidence.n,
        "skips": None if offset.skips is None else asdict(offset.skips),
        "floor": None
        if (floor := offset.floor) is None
        else {"n": floor.n, "cut": floor.cut(), "cosine": floor.cosine(), "sentence": floor.sentence()},
        "judge": offsets.settings.get("judge"),
        "landmarks": None if offset.map is None else len(offset.map.landmarks),
        "bandwidth": None if offset.map is None else offset.map.bandwidth,
        "words": None if (rescorer := offset.rescorer) is None else asdict(rescorer.evidence),
        "weights": None if rescorer is None else rescorer.weights.tolist(),
    }


def offset_lines(offset: Offset, *, verbose: bool = False) -> list[str]:
    """An offset in a line that a person understands; further ones are of its rescorer, and of what it saves.

    *verbose* ones say what it was learned from, and the statistics of the gate.
    """
    lines = [f"{offset.key}: {offset.evidence}"]
    if verbose:
        noun, map_ = "query" if offset.n == 1 else "queries", offset.map
        local = "" if map_ is None else f", {len(map_.landmarks)} landmarks, bandwidth {map_.bandwidth:.2f}"
        lines.append(f"  {offset.n} rewarded {noun}, dose {offset.alpha:.2f}{local}")
        lines += [f"  {part}" for part in [offset.evidence.statistics] if part]
    if (rescorer := offset.rescorer) is not None:
        lines.append(f"words of {offset.task}: {rescorer.evidence}")
        lines += [f"  {part}" for part in [rescorer.evidence.statistics] if part and verbose]
    return [*lines, *(f"  {saved}" for saved in offset.certified)]


def with_origin(offsets: Offsets, **origin: str) -> Offsets:
    """*offsets* with settings that say where they come from: the embedding model, a probe of it, a warning.

    A setting that is empty is taken away.
    """
    settings = {name: value for name, value in {**offsets.settings, **origin}.items() if value or name not in origin}
    return Offsets(offsets.values(), width=offsets.width, settings=settings)
