"""What type checkers know about the public API: mypy reads this file, nothing runs it.

A wrong call carries the error it must cause; strict mypy complains where it no longer does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, assert_type

import numpy as np
from numpy.typing import NDArray

from tttembed_rag import Evidence, InputError, Offset, Offsets, Recipe, Rewards, Scale, TTTEmbedError, fit
from tttembed_rag.errors import DataError, MissingExtraError, OffsetFileError, RewardError, VectorError
from tttembed_rag.fitting import KD, ReverseKL
from tttembed_rag.offsets.offset import Certificate


def build(queries: NDArray[np.float32], documents: NDArray[np.float32], scores: NDArray[np.float64]) -> Rewards:
    """Rewards come from arrays or lists, dense or ragged, with their scale as an object or a text."""
    ids = ["q1", "q2"]
    assert_type(Rewards.from_arrays(queries, documents, scores, ids, ids, scale="rubric:0,5", judge="gpt"), Rewards)
    assert_type(Rewards.from_arrays([[1.0, 0.0]], [[[0.0, 1.0]]], [[0.5]]), Rewards)
    assert_type(Rewards.from_arrays(queries, [documents, documents], [scores, scores]), Rewards)
    assert_type(Rewards.from_indexed(queries, documents, [[0, 1], [2]], [[0.1, 0.9], [0.3]], tasks=ids), Rewards)
    Rewards.from_arrays(queries, documents)  # type: ignore[call-arg]
    Rewards.from_arrays(queries, documents, scores, tasks=[1, 2])  # type: ignore[list-item]
    Rewards.from_arrays(queries, documents, scores, ids, ids, "logit")  # type: ignore[call-arg]
    Rewards.from_indexed(queries, documents, [[0]], [[0.5]], scale=5)  # type: ignore[arg-type]
    return Rewards.from_indexed(queries, documents, [[0]], [[0.5]], scale=Scale("rubric", 0, 5), judge=["gpt"])


def read(rewards: Rewards) -> None:
    """A reward set has a length, columns, and cannot be changed."""
    assert_type(len(rewards), int)
    assert_type(rewards.width, int)
    assert_type(rewards.budget, int)
    assert_type(rewards.values, NDArray[np.float64])
    assert_type(rewards.tasks, NDArray[np.str_])
    assert_type(rewards.judge, str)
    rewards.judge = "other"  # type: ignore[misc]


def scales() -> None:
    """Scales are one of three kinds."""
    assert_type(Scale.parse("logit"), Scale)
    assert_type(Scale().kind, Literal["probability", "logit", "rubric", "unbounded"])
    assert_type(Scale().low, float)
    Scale("stars")  # type: ignore[arg-type]


def learn(rewards: Rewards) -> Offsets:
    """Fitting gives offsets; its options are keywords with known values."""
    assert_type(fit(rewards), Offsets)
    assert_type(fit(rewards, scope="task", recipe=Recipe(objective=ReverseKL(), solver="adam"), gate=False), Offsets)
    fit(rewards, "task")  # type: ignore[call-arg]
    fit(rewards, scope="team")  # type: ignore[arg-type]
    Recipe(objective="mse")  # type: ignore[arg-type]
    Recipe(objective=KD)  # type: ignore[arg-type]
    Recipe(solver="sgd")  # type: ignore[arg-type]
    Recipe(ridge="0.3")  # type: ignore[arg-type]
    fit(rewards, temperature=0.02)  # type: ignore[call-arg]
    fit([0.1, 0.9])  # type: ignore[arg-type]
    options = Recipe(ridge=1, teacher_temperature=0.02, student_temperature=0.05, kappa=1.0, tolerance=1e-6)
    return fit(rewards, recipe=options)


def serve(offsets: Offsets, narrow: NDArray[np.float32], wide: NDArray[np.float64]) -> None:
    """Query vectors come back as they went in: arrays with their dtype, lists as lists."""
    assert_type(offsets.apply(narrow), NDArray[np.float32])
    assert_type(offsets.apply(wide, task="billing", query_id="q1"), NDArray[np.float64])
    assert_type(offsets.apply(wide, ["billing", "legal"], ["q1", "q2"]), NDArray[np.float64])
    assert_type(offsets.apply([0.1, 0.2]), list[float])
    assert_type(offsets.apply([[0.1, 0.2]], task=None), list[list[float]])
    assert_type(offsets.find("billing", "q1"), Offset | None)
    offsets.apply("a query")  # type: ignore[call-overload]
    offsets.apply(narrow, task=3)  # type: ignore[call-overload]
    offsets.apply(narrow, scope="billing")  # type: ignore[call-overload]
    offsets.apply(narrow.astype(np.str_))  # type: ignore[type-var]


def look(offsets: Offsets) -> None:
    """Offsets are a read-only mapping from keys to offsets."""
    mapping: Mapping[str, Offset] = offsets
    assert_type(offsets["task:billing"], Offset)
    assert_type(offsets.get("global"), Offset | None)
    assert_type(iter(mapping), Iterator[str])
    assert_type([offset.key for offset in offsets.values()], list[str])
    assert_type(offsets.width, int)
    assert_type(offsets.settings, Mapping[str, str | float])
    offsets["global"] = offsets["task:billing"]  # type: ignore[index]
    offsets[0]  # type: ignore[index]


def inspect(offset: Offset) -> None:
    """An offset says what it is, and cannot be changed."""
    assert_type(offset.scope, Literal["global", "task", "local", "query"])
    assert_type(offset.vector, NDArray[np.floating[Any]])
    assert_type(offset.alpha, float)
    assert_type(offset.n, int)
    assert_type(offset.task, str | None)
    assert_type(offset.query_id, str | None)
    assert_type(offset.key, str)
    assert_type(offset.served, bool)
    assert_type(offset.evidence, Evidence)
    assert_type(offset.certificate, Certificate | None)
    offset.alpha = 0.5  # type: ignore[misc]


def weigh(evidence: Evidence, certificate: Certificate) -> None:
    """Evidence that was not measured is None, and has to be looked at as such."""
    assert_type(evidence.n, int)
    assert_type(evidence.gain, float | None)
    assert_type(evidence.interval, tuple[float, float] | None)
    assert_type(evidence.verdict, Literal["published", "abstained", "ungated"])
    assert_type(evidence.reason, str)
    assert_type(certificate.objective, float)
    assert_type(certificate.gradient_norm, float)
    assert_type(certificate.evaluations, int)
    assert_type(certificate.converged, bool)
    evidence.gain + 1.0  # type: ignore[operator]
    Evidence(1, None, None, "unsure", "because")  # type: ignore[arg-type]


def keep(offsets: Offsets, path: Path) -> None:
    """Files are named by text or path."""
    offsets.save(path)
    offsets.save(str(path))
    assert_type(Offsets.load(path), Offsets)
    offsets.save()  # type: ignore[call-arg]
    Offsets.load(3)  # type: ignore[arg-type]


def fail() -> None:
    """Every error is ours, and what Python programmers catch already."""
    ours: list[type[TTTEmbedError]] = [InputError, VectorError, RewardError, DataError, OffsetFileError]
    values: list[type[ValueError]] = [InputError, VectorError, RewardError, DataError, OffsetFileError]
    inputs: list[type[InputError]] = [VectorError, RewardError]
    missing: list[type[ImportError]] = [MissingExtraError]
    wrong: list[type[InputError]] = [DataError]  # type: ignore[list-item]
    assert_type((ours, values, inputs, missing, wrong)[0], list[type[TTTEmbedError]])
