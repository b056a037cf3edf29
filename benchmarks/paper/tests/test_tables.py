"""`python -m benchmarks.paper`: every experiment on two small sets, what it writes, and that it can be stopped."""

from __future__ import annotations

import csv
import io
import json
import math
import sqlite3
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from benchmarks.paper.baselines import baselines_study, rivals_of
from benchmarks.paper.budget import budget_study
from benchmarks.paper.cells import Cell, CellStore, finished, measured
from benchmarks.paper.command import NAMES, main
from benchmarks.paper.design import RERANK, Study, StudyOptions
from benchmarks.paper.dose import RULE, dose_study
from benchmarks.paper.estimates import Estimate
from benchmarks.paper.judges import judges_study, open_on_same_pairs
from benchmarks.paper.recovery import recovery_study
from benchmarks.paper.tables import Curve, StudyReport, Table
from benchmarks.paper.transfer import transfer_study
from benchmarks.paper.unseen import by_documents, unseen_study
from benchmarks.paper.workload import Workload
from tttembed_rag import Scale
from tttembed_rag.errors import DataError, InputError
from tttembed_rag.evaluate.collection import open_collection
from tttembed_rag.evaluate.files import load_beir, write_beir, write_scores, write_vectors

DOCUMENTS, QUERIES, WIDTH, SCORED = 90, 30, 12, 20
# Near repeats need texts and an embedder: see `test_repeats`.
STUDIES = [name for name in NAMES if name != "repeats"]


def write_planted(folder: Path, seed: int) -> Path:
    """A BEIR folder whose queries all lean the same wrong way; `oracle` knows the answers, `dice` nothing."""
    rng = np.random.default_rng(seed)
    docs = rng.standard_normal((DOCUMENTS, WIDTH))
    docs /= np.linalg.norm(docs, axis=1, keepdims=True)
    relevant = rng.permutation(DOCUMENTS)[:QUERIES]
    noise = rng.standard_normal((QUERIES, WIDTH))
    queries = docs[relevant] + 0.3 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    queries[:, 0] += 0.6
    first = np.argsort(-queries @ docs.T, axis=1)[:, :SCORED]
    scores: dict[str, dict[str, dict[str, float]]] = {"oracle": {}, "dice": {}}
    for q in range(QUERIES):
        for d in sorted({*first[q].tolist(), int(relevant[q])}):
            knows = 0.9 if d == relevant[q] else 0.1 * rng.random()
            scores["oracle"].setdefault(f"q{q}", {})[f"d{d}"] = round(knows, 4)
            if d % 3:
                scores["dice"].setdefault(f"q{q}", {})[f"d{d}"] = round(9 * rng.standard_normal(), 4)
    qrels = {f"q{q}": {f"d{d}": 1.0} for q, d in enumerate(relevant)}
    write_beir(folder, [(f"d{d}", "", "") for d in range(DOCUMENTS)], {f"q{q}": "" for q in range(QUERIES)}, qrels)
    for judge, of_judge in scores.items():
        write_scores(folder / "scores" / f"{judge}.tsv", of_judge)
    write_vectors(folder, "tiny", load_beir(folder), docs, queries, fingerprint="tiny")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two planted folders."""
    return [write_planted(tmp_path_factory.mktemp("beir") / name, i) for i, name in enumerate(("left", "right"))]


@pytest.fixture(scope="module")
def workload(folders: list[Path]) -> Workload:
    """Both sets under the judge that knows the answers."""
    return opened(folders)


def opened(folders: list[Path], rewards: str = "oracle", scale: str = "probability") -> Workload:
    """The sets under one of their judges."""
    return Workload.of([open_collection(f, vectors="tiny", rewards=rewards, scale=Scale.parse(scale)) for f in folders])


OPTIONS = StudyOptions(depth=5, seeds=(0,), breadths=(2, 8))


def run(name: str, folders: list[Path], out: Path, *more: str) -> Result:
    """The command, with few budgets and one seed."""
    few = ["--vectors", "tiny", "--depth", "5", "--seeds", "0", "--breadths", "2,8", "--out", str(out)]
    rewards = [] if "--rewards" in more else ["--rewards", "oracle"]
    return CliRunner().invoke(main, [name, *map(str, folders), *few, *rewards, *more])


def found(study: Study, store: CellStore | None = None) -> list[Mapping[str, Any]]:
    """The columns of every cell of a study."""
    return list(measured(study.cells, store or CellStore(None)))


def column(table: Table, name: str) -> dict[Any, Any]:
    at = table.columns.index(name)
    return {row[0]: row[at] for row in table.rows}


# The command


@pytest.fixture(scope="module")
def results(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    for name in STUDIES:
        result = run(name, folders, out)
        assert result.exit_code == 0, result.output
    return out


@pytest.mark.parametrize("name", STUDIES)
def test_every_experiment_writes_its_files(results: Path, name: str) -> None:
    """Text, CSV, LaTeX, JSON, a plot and a manifest, each with something in it."""
    sizes = {ending: (results / f"{name}.{ending}").stat().st_size for ending in ("txt", "csv", "tex", "png")}
    report = json.loads((results / f"{name}.json").read_text())

    assert min(sizes.values()) > 100
    assert report["tables"][0]["rows"]
    assert report["manifest"] == json.loads((results / f"{name}.manifest.json").read_text())


def test_the_manifest_says_what_was_measured(results: Path) -> None:
    """Data by content with query ids, judge and embedder; seeds; a hash of all settings."""
    manifest = json.loads((results / "budget.manifest.json").read_text())
    part = manifest["data"][0]

    assert tuple(part[k] for k in ("dataset", "embedder", "rewards", "simulated")) == ("left", "tiny", "oracle", False)
    assert [f"q{q}" for q in range(QUERIES)] == part["queries"]
    assert (manifest["seeds"], len(part["sha256"]), len(manifest["settings_sha256"])) == ([0], 64, 64)


def test_labels_as_judge_are_called_simulated(folders: list[Path], tmp_path: Path) -> None:
    """A simulation is called one in the text and in the manifest."""
    result = run("dose", folders, tmp_path, "--rewards", "qrels")

    assert "qrels (simulated judge)" in result.output
    assert json.loads((tmp_path / "dose.manifest.json").read_text())["data"][0]["simulated"]


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("budget", ("--rewards", "oracle", "--rewards", "dice"), "--rewards: expected one for budget, got 2"),
        (
            "judges",
            ("--rewards", "oracle", "--scale", "logit", "--scale", "logit"),
            "--scale: expected one, or one per",
        ),
        ("recovery", ("--specialty", "up"), "specialty: expected one of several sets left, right, got 'up'"),
        ("budget", ("--rewards", "nobody"), "expected stored scores, found none (here: dice, oracle"),
        ("budget", ("--depth", "0"), "expected numbers >= 1"),
    ],
)
def test_bad_input_is_one_line(
    folders: list[Path], tmp_path: Path, name: str, more: tuple[str, ...], message: str
) -> None:
    """Bad input ends with exit code 2 and a reason, before anything is written."""
    result = run(name, folders, tmp_path / "out", *more)

    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "out").exists()


# Cells


@pytest.mark.slow
def test_a_finished_run_is_not_measured_again(folders: list[Path], tmp_path: Path) -> None:
    """The second run changes no cell and writes the same tables; --fresh measures them anew."""
    run("dose", folders, tmp_path)
    first, cells = (tmp_path / "dose.json").read_bytes(), (tmp_path / "cells.sqlite").read_bytes()

    run("dose", folders, tmp_path)
    again = (tmp_path / "cells.sqlite").read_bytes()
    run("dose", folders, tmp_path, "--fresh")

    assert cells == again
    assert cells != (tmp_path / "cells.sqlite").read_bytes()
    assert first == (tmp_path / "dose.json").read_bytes()


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    """Cells that were finished before a stop are there for the next run, and only they."""
    calls: list[int] = []

    def cell(i: int) -> Cell:
        def measure() -> dict[str, np.ndarray]:
            calls.append(i)
            if calls == [0, 1]:
                raise KeyboardInterrupt
            return {"x": np.array([float(i), math.nan])}

        return Cell({"i": i}, measure)

    cells = [cell(i) for i in range(3)]
    with pytest.raises(KeyboardInterrupt):
        list(measured(cells, CellStore(tmp_path / "cells.sqlite")))

    values = [columns["x"] for columns in measured(cells, CellStore(tmp_path / "cells.sqlite"))]

    assert calls == [0, 1, 1, 2]
    assert np.array_equal([[0, np.nan], [1, np.nan], [2, np.nan]], values, equal_nan=True)


@pytest.mark.slow
def test_workers_measure_the_same(folders: list[Path], results: Path, tmp_path: Path) -> None:
    """Two processes fill the file of cells with what one measures; the next run finds them there."""
    side_by_side = run("budget", folders, tmp_path, "--workers", "2")
    with closing(CellStore(tmp_path / "cells.sqlite")) as store:
        cells = budget_study(opened(folders), OPTIONS).cells
        stored = [store.get(cell.key) for cell in cells]

    assert side_by_side.exit_code == 0, side_by_side.output
    assert (tmp_path / "budget.csv").read_text() == (results / "budget.csv").read_text()
    assert None not in stored


def test_cells_that_are_done_are_kept_where_another_fails(tmp_path: Path) -> None:
    """Whichever comes first is put away at once; what fails is raised."""
    cells = [Cell({"i": i}, dict) for i in range(3)]

    def measure(number: int) -> dict[str, np.ndarray]:
        if number == 1:
            raise DataError("no such cell")
        return {"x": np.array([float(number)])}

    with closing(CellStore(tmp_path / "cells.sqlite")) as store, ThreadPoolExecutor(1) as pool:
        with pytest.raises(DataError, match="no such cell"):
            list(finished(cells, store, pool, measure))

        assert [store.get(cell.key) is None for cell in cells][:2] == [False, True]


def test_experiments_share_cells(workload: Workload) -> None:
    """The same rewarded pairs are measured once, whatever table asks for them."""
    everyone = 2 * QUERIES
    whole = budget_study(workload, OPTIONS).cells[-1]
    same = budget_study(workload, replace(OPTIONS, breadths=(everyone,), seeds=(1, 2))).cells

    assert whole.key in {cell.key for cell in same}


@pytest.mark.parametrize("change", [{"depth": 4}, {"seeds": (1,)}, {"objective": "reverse_kl"}, {"solver": "adam"}])
def test_other_settings_are_other_cells(workload: Workload, change: dict[str, Any]) -> None:
    """Nothing measured under other settings is taken for this."""
    known = {cell.key for cell in budget_study(workload, OPTIONS).cells[:1]}

    assert known.isdisjoint(cell.key for cell in budget_study(workload, replace(OPTIONS, **change)).cells[:1])


def test_other_inputs_are_other_cells(folders: list[Path], workload: Workload) -> None:
    """Another score, or another bit of a vector, is another input."""
    collection = workload.collections[0]
    vectors = collection.query_vectors.copy()
    vectors[3, 2] = np.nextafter(vectors[3, 2], np.float32(2))
    scores = {query: dict(given) for query, given in collection.scores.items()}
    scores["q1"][next(iter(scores["q1"]))] += 0.001
    changed = [replace(collection, query_vectors=vectors), replace(collection, scores=scores)]

    keys = [budget_study(Workload.of([c]), OPTIONS).cells[0].key for c in (collection, *changed)]

    assert len(set(keys)) == 3
    assert keys[0] == budget_study(opened(folders[:1]), OPTIONS).cells[0].key


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    """A file that holds no cells is named in the error."""
    (tmp_path / "cells.sqlite").write_text("not a database, but long enough to be taken for one" * 100)

    with pytest.raises(DataError, match=r"cells\.sqlite: expected a file of measured cells"):
        CellStore(tmp_path / "cells.sqlite")


# What the experiments find


def test_budgets_count_judged_pairs(workload: Workload) -> None:
    """B is rewarded pairs per query; full coverage at the depths that the judge has goes on from there."""
    study = budget_study(workload, OPTIONS)
    table = study.report(found(study)).tables[0]

    assert [row[0] for row in table.rows[:2]] == ["0.1667", "0.6667"]
    assert table.rows[-1][:3] == (f"{SCORED}", 2 * QUERIES, 30)


def test_budget_rows_are_means_over_sets(workload: Workload) -> None:
    """Direct rerank at full coverage is the mean over sets of each set's own mean change."""
    study = budget_study(workload, replace(OPTIONS, breadths=(2 * QUERIES,)))
    changes = [(c.measure_reranked(np.arange(QUERIES), 5) - c.raw).mean() for c in workload.collections]

    table = study.report(found(study)).tables[0]

    assert 100 * np.mean(changes) == pytest.approx(column(table, RERANK)["5"].mean)


def test_auto_finds_the_planted_lean(workload: Workload) -> None:
    """Where one offset helps every query, the table says that auto gains by area."""
    study = budget_study(workload, StudyOptions(depth=5, seeds=(0, 1), breadths=(4, 16, 40)))
    area = column(study.report(found(study)).tables[1], "auto")["mean"]

    assert area.low > 0


def test_rewards_of_held_out_queries_change_nothing(folders: list[Path], workload: Workload) -> None:
    """Transfer to held-out queries is the same when the judge answers them with noise."""
    rng = np.random.default_rng(0)
    study = transfer_study(workload, OPTIONS)
    known = found(study)[:2]
    held = np.isfinite(known[0]["task"])
    assert 0.15 < held.mean() < 0.25
    noisy = []
    for number, collection in enumerate(workload.collections):
        mine = held[workload.tasks == number]
        scores = {
            query: {d: float(rng.random()) for d in given} if mine[int(query[1:])] else dict(given)
            for query, given in collection.scores.items()
        }
        noisy.append(replace(collection, scores=scores))

    again = found(transfer_study(Workload.of(noisy), OPTIONS))[:2]

    for before, after in zip(known, again, strict=True):
        assert np.array_equal(before["task"], after["task"], equal_nan=True)


def test_shares_are_of_what_reranking_held_out_queries_would_gain(workload: Workload) -> None:
    """The share of a set is the mean change of its held-out queries over that of direct rerank of them."""
    study = transfer_study(workload, OPTIONS)
    results = found(study)
    *_, shares, growing = study.report(results).tables
    everyone = [np.arange(QUERIES)] * 2
    reranked = workload.reranked(everyone, 5) - workload.raw
    last = results[2]["local"]
    held = np.isfinite(last)
    gains = [
        ((last - workload.raw)[mine].mean(), reranked[mine].mean()) for mine in (held & (workload.tasks == 0), held)
    ]

    for name, (gain, whole) in zip(("left", "mean"), gains, strict=True):
        assert 100 * gain / whole == pytest.approx(column(shares, "local")[name].mean)
    assert column(growing, "local")["all 80 %"] == column(shares, "local")["mean"]


def test_a_task_left_out_is_measured_by_the_others(workload: Workload) -> None:
    """Each query is measured in the one part that its own task rewarded nothing of: scores there change nothing."""
    left, right = workload.collections
    noise = {query: dict.fromkeys(given, 0.5) for query, given in left.scores.items()}
    other = Workload.of([replace(left, scores=noise), right])

    on_left, on_right = (part["global"] for part in found(transfer_study(workload, OPTIONS))[-2:])
    same, changed = (part["global"] for part in found(transfer_study(other, OPTIONS))[-2:])

    assert np.array_equal(np.isfinite(on_left), workload.tasks == 0)
    assert np.array_equal(on_left, same, equal_nan=True)
    assert not np.array_equal(on_right, changed, equal_nan=True)


def test_the_rule_is_one_of_the_doses(workload: Workload) -> None:
    """With one rewarded query per task n / (n + 1) is the fixed dose of .5."""
    (columns,) = found(dose_study(workload, replace(OPTIONS, breadths=(1,))))[:1]

    assert np.array_equal(columns["0.5"], columns[RULE])
    assert not np.array_equal(columns["0.1"], columns[RULE])


def test_judges_are_compared_on_the_same_pairs(folders: list[Path]) -> None:
    """Only pairs that every judge scored are rewarded; unbounded scores reorder and teach nothing."""
    asked = [("oracle", Scale()), ("dice", Scale("unbounded")), ("qrels", Scale())]

    opened_ = open_on_same_pairs(folders, "tiny", asked)
    study = judges_study(opened_, OPTIONS)
    table = study.report(found(study)).tables[0]

    candidates = [[c.candidates(q, 5)[0].tolist() for q in range(len(c.raw))] for w in opened_ for c in w.collections]
    assert candidates[:2] == candidates[2:4] == candidates[4:]
    assert all(d % 3 for rows in candidates for row in rows for d in row)
    assert math.isnan(column(table, "auto")["dice"].mean)
    assert column(table, RERANK)["oracle"].mean > column(table, RERANK)["dice"].mean
    assert "qrels (simulated judge)" in column(table, "auto")


def test_what_specialising_lost_is_won_back(workload: Workload) -> None:
    """The stand-in loses on the other set; (b) starts from there, and rewards there win some of it back."""
    study = recovery_study(workload, replace(OPTIONS, depth=20), "left")
    (trade, won, _) = study.report(found(study)).tables
    away = column(trade, "mean of the other sets")

    assert away["specialised"].mean < away["base"].mean
    assert column(won, "gain")["query"].mean > 0
    for state in ("query", RERANK):
        expected = away["specialised"].mean + column(won, "gain")[state].mean
        assert expected == pytest.approx(column(won, "mean")[state].mean)


def test_rivals_and_ours_are_on_the_same_pairs(workload: Workload) -> None:
    """A rival that is private to judged queries leaves all the others at raw, as direct rerank does."""
    study = baselines_study(workload, replace(OPTIONS, breadths=(3,)))
    columns = found(study)[0]
    rewarded = workload.mask(workload.drawn(6, 0))

    for name in (RERANK, "query", "judged Rocchio", "Qdrant feedback", "ReFIT", "IBM refinement"):
        assert np.array_equal(workload.raw[~rewarded], columns[name][~rewarded]), name


def test_a_study_compares_the_rivals_that_are_named(workload: Workload) -> None:
    """Of rivals only those that the options name are measured; a name that none has is refused."""
    named = ("RAGLite adapter", "completed matrix, kernel")

    assert list(rivals_of(replace(OPTIONS, methods=named))) == list(named)
    with pytest.raises(InputError, match="methods: expected some of average PRF"):
        baselines_study(workload, replace(OPTIONS, methods=("RAGLite",)))


@pytest.mark.parametrize("rewards", ["oracle", "qrels"])
def test_no_reward_is_about_an_unseen_document(folders: list[Path], rewards: str) -> None:
    """Queries measured have unseen relevant documents alone, rewarded ones seen ones alone; no candidate is unseen."""
    (collection,) = opened(folders[:1], rewards).collections

    seen, pool, measured_ones = by_documents(collection, 3)

    relevant = [set(docs) for docs in collection.dataset.qrels.values()]
    assert all(relevant[q] <= seen.unjudged for q in measured_ones.tolist())
    assert all(relevant[q].isdisjoint(seen.unjudged) for q in pool.tolist())
    assert len(pool) + len(measured_ones) == QUERIES
    assert abs(len(measured_ones) - QUERIES / 2) <= 1
    for q in pool.tolist():
        candidates = collection.doc_ids[seen.candidates(q, SCORED)[0]].tolist()
        expected = [doc for doc in collection.doc_ids[collection.candidates(q, 90)[0]] if doc not in seen.unjudged]
        assert candidates == expected[: len(candidates)]
        assert len(candidates) == min(SCORED, len(expected))


def test_rewards_about_unseen_documents_change_nothing(workload: Workload) -> None:
    """Every method gives the same on queries for unseen documents when the judge answers them with noise."""
    few = replace(OPTIONS, breadths=(6,))
    noisy = []
    for collection in workload.collections:
        seen, _, measured_ones = by_documents(collection, 0)
        measured_ids = {f"q{q}" for q in measured_ones.tolist()}
        scores = {
            query: {d: 0.7 if d in seen.unjudged or query in measured_ids else value for d, value in given.items()}
            for query, given in collection.scores.items()
        }
        noisy.append(replace(collection, scores=scores))

    (_, before), (_, after) = (found(unseen_study(w, few)) for w in (workload, Workload.of(noisy)))

    for name, values in before.items():
        assert np.array_equal(values, after[name], equal_nan=True), name


def test_a_set_without_queries_for_unseen_documents_is_refused(workload: Workload) -> None:
    """Where every query has relevant documents of both halves there is nothing to measure."""
    collection = workload.collections[0]
    everything = {query: {f"d{d}": 1.0 for d in range(DOCUMENTS)} for query in collection.scores}
    other = replace(collection, dataset=replace(collection.dataset, qrels=everything))

    with pytest.raises(
        DataError, match=r"^left: expected queries for seen and for unseen documents alone, got 0 and 0"
    ):
        unseen_study(Workload.of([other]), OPTIONS)


def test_sets_of_one_name_are_refused(workload: Workload) -> None:
    with pytest.raises(DataError, match="expected different names, got left, left"):
        Workload.of([workload.collections[0]] * 2)


# Tables


TABLE = Table(
    "A & B",
    ("set", "gain_%", "n"),
    (("x_1", Estimate(1.0, 0.5, 1.5), 3), ("y", Estimate(math.nan, math.nan, math.nan), "-")),
    ("A note.",),
)


def test_text_is_aligned() -> None:
    """Numbers end in one column, whatever their length; what was not measured is a dash."""
    lines = TABLE.text().splitlines()

    assert "+1.00 [+0.50, +1.50]" in lines[4]
    assert len(lines[4]) == len(lines[5]) == len(lines[2])
    assert lines[5].split() == ["y", "-", "-"]


def test_csv_has_a_column_per_number() -> None:
    """An estimate is its mean, low and high."""
    rows = list(csv.reader(io.StringIO(TABLE.csv())))

    assert rows[:2] == [["set", "gain_%", "gain_% low", "gain_% high", "n"], ["x_1", "1.0", "0.5", "1.5", "3"]]


def test_latex_is_escaped() -> None:
    """Characters that LaTeX reads as commands are text, and rows end."""
    latex = TABLE.latex()

    assert r"set & gain\_\% & n \\" in latex
    assert latex.count(r"\\") == 3


def test_json_has_no_nan() -> None:
    report = StudyReport((TABLE,), (Curve("gain", (1.0,), (Estimate(math.nan, math.nan, math.nan),)),), "b")

    assert "NaN" not in json.dumps(report.as_dict())
    assert report.as_dict()["tables"][0]["rows"][1][1] == {"mean": None, "low": None, "high": None}


def test_a_file_of_other_tables_is_no_file_of_cells(tmp_path):
    """A database of somebody else is an error of one line, when it is opened or when it is read."""
    path = tmp_path / "cells.sqlite"
    with closing(sqlite3.connect(path)) as foreign:
        foreign.execute("create table cells (key text primary key)")
    store = CellStore(path)

    with pytest.raises(DataError, match="expected a file of measured cells"):
        store.get(b"key")
