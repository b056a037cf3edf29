"""A made-up office: eight servers of tools, two for every kind of work, and what people ask for in their own words."""

from __future__ import annotations

import csv
from importlib import resources

import numpy as np

from tttembed_rag.evaluate.datasets import Dataset


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
