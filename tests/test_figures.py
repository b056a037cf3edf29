"""What README and the pages of docs/ print as figures is what the benchmarks print, or wrote last.

Benchmarks that take minutes leave what they wrote in benchmarks/results; the command stands with each test.
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tttembed_tools.demo import tools as tools_demo
from tttembed_tools.demo.tools import DemoRow

from tttembed_rag.evaluate.datasets import QRELS

REPO = Path(__file__).resolve().parents[1]
DATA = REPO.parent / "shared" / "data"


def written(name: str) -> Any:
    """What a benchmark wrote last."""
    return json.loads((REPO / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def page_of(path: str) -> str:
    """A page below docs/ on one line."""
    return " ".join((REPO / "docs" / path).read_text(encoding="utf-8").split())


def digits(value: float, form: str = "+.3f") -> str:
    """A number as documents print it: no zero before the point."""
    return f"{value:{form}}".replace("0.", ".", 1)


def percent(value: float) -> str:
    """A share as documents print it."""
    return f"{100 * value:.0f} %"


def hundredths(value: float) -> str:
    """A change of nDCG@10 x 100, which may be above 10, as documents print it."""
    return re.sub(r"^([+-])0\.", r"\1.", f"{value:+.2f}")


README = page_of("../README.md")
RERANKING = page_of("reference/reranking.md")
FIGURES = page_of("reference/figures.md")
WORDS = page_of("reference/words.md")
NUMBERS = page_of("reference/numbers.md")


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "metatool").is_dir(), reason=f"{DATA / 'metatool'} is absent")
def test_figures_of_the_readme_are_those_that_the_benchmark_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The two of `benchmarks/gain.py`, to the last digit; that of `benchmarks/harm.py` takes hours."""
    gain = runpy.run_path(str(REPO / "benchmarks" / "gain.py"))
    gain["shared_scopes"].__globals__.update(SETS=("metatool", "cranfield"), BUDGETS=(16, 200))
    gain["shared_scopes"](DATA, None)
    printed = {
        line[:26].split()[0] + " " + line[12:26].strip(): line[26:] for line in capsys.readouterr().out.splitlines()
    }

    def change(row: str, column: int) -> str:
        return re.sub(r"^([+-])0\.", r"\1.", re.findall(r"([+-]\S+) \(", printed[row])[column])

    gained = change("metatool auto", 1)[1:]
    assert f"200 judged queries of metatool (requests for tools) gain {gained} with all-MiniLM-L6-v2:" in README
    assert change("cranfield auto", 0) == "+.000"
    lost = change("cranfield plain rule", 0)[1:]
    harmless = f"nothing changes. The paper's offset, served without the gate, loses {lost} there."
    assert harmless in README


def test_figures_of_more_judging_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/ahead.py --json benchmarks/results/ahead.json` takes three minutes."""
    measured = written("ahead")
    steps, inside, near = (
        (min(some), max(some))
        for some in (
            [each["later"] - each["now"] for each in measured.values()],
            *([each[name] for each in measured.values()] for name in ("inside", "near")),
        )
    )

    assert [*measured] == ["32", "64", "100", "200", "300"]
    more = f"gained {digits(steps[0], '.3f')} to {digits(steps[1], '.3f')} more at every size from 32 to 300"
    assert more in RERANKING
    assert more in page_of("how-to/choose-a-judge.md")
    assert f"held the gain in {100 * inside[0]:.0f} to {percent(inside[1])}" in RERANKING
    assert f"of it in {100 * near[0]:.0f} to {percent(near[1])}" in RERANKING


def test_figures_of_what_lists_bring_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/brought.py --json benchmarks/results/brought.json` takes four minutes."""
    results = written("brought")
    words, offset = ([digits(of[which]) for of in results.values()] for which in ("words", "offset"))
    assert [*results] == ["16", "64", "200"]
    assert "makes {}, {} and {} of the ten that it reads so, beside {}, {} and {} of".format(*words, *offset) in WORDS


def test_figures_of_judging_on_a_gpu_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/judge.py --device cuda --json benchmarks/results/judge.json` takes seven minutes there."""
    results = written("judge")
    rate = {(row["work"], row["way"]): f"{row['pairs_s']:,.0f}" for row in results}
    page = (REPO / "docs" / "reference" / "speed.md").read_text(encoding="utf-8")
    sets = {"metatool": "metatool", "hotpotqa": "hotpotqa-dev500", "scifact": "scifact"}
    ways = ("model card", "pooled, padded", "ours, before it compiles")

    for size, (name, folder) in product(("0.6B", "4B"), sets.items()):
        work = f"reranker {size}, {folder} x 10"
        rivals = " | ".join(rate[work, way] for way in ways)
        row = rf"\| {size}, {name} \| \d+ \| {re.escape(rivals)} \| \*\*{rate[work, 'ours, compiled']}\*\* \|"
        assert re.search(row, page)
    for name, folder in sets.items():
        work = f"cross-encoder, {folder} x 10"
        rivals = " and ".join(rate[work, f"sentence-transformers, {size}"] for size in (32, 128))
        assert f"| {rivals} | **{rate[work, 'ours']}** |" in page
        rival, ours = (rate[f"embedder, {folder}", way] for way in ("sentence-transformers, 32", "ours"))
        assert re.search(rf"\| embedder, {name}.* \| {rival}.* \| \*\*{ours}\*\* \|", page)


def test_figures_of_the_cascade_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/cascade.py --json benchmarks/results/cascade.json` takes a quarter of an hour."""
    results = written("cascade")
    page = page_of("how-to/rerank-less.md")
    of = {tuple(line[name] for name in ("source", "judged", "repeats", "policy")): line for line in results}
    printed = {"qrels+.05": "labels", "ce-minilm-multi": "cross-encoder"}
    for (source, judged, repeats, policy), line in of.items():
        if policy == "cascade":
            rivals = [of[source, judged, repeats, name] for name in ("cache of texts", "cache of vectors, 0.95")]
            saved = [percent(each["calls"]) for each in (line, *rivals)]
            lost = [digits(line[name]) for name in ("labels", "judge", "labels_all", "judge_all")]
            row = " | ".join([printed[source], str(judged), percent(repeats), *saved, *lost])
            assert f"| {row} |" in RERANKING
    cascades = [line for key, line in of.items() if key[-1] == "cascade"]
    cells, broken = (sum(line[name] for line in cascades) for name in ("cells", "labels above"))
    first = digits(max(line["labels worst"] for line in cascades))
    assert sum(line["judge above"] for line in cascades) == 0
    above = sum(line["labels_all above"] for line in cascades)
    worst = digits(max(line["labels_all worst"] for line in cascades))
    assert f"broken in {broken} of {cells} cells by labels ({first}), and in none by" in RERANKING
    assert f"above .01 in {above} of them, {worst} at worst" in RERANKING
    for repeats, sentence in ((0.0, "saves {} to {} % of the calls where no"), (0.6, "{} to {} % where 60 % do")):
        calls = [100 * line["calls"] for key, line in of.items() if key[2:] == (repeats, "cascade")]
        assert sentence.format(round(min(calls)), round(max(calls))) in page
    texts = [100 * line["calls"] for key, line in of.items() if key[2:] == (0.6, "cache of texts")]
    assert f"a cache of texts saves {round(min(texts))} to {round(max(texts))} % then" in page


def test_figures_of_words_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/words.py --json benchmarks/results/words.json` takes minutes; what it wrote is in the tree."""
    results = written("words")
    page = page_of("how-to/words.md")
    columns = ("direct", "rank fusion", "v, data", "words, data", "v, declared", "words, declared")
    for key, title in {
        "minilm, qrels+.05": "MiniLM, labels",
        "minilm, ce-minilm-multi": "MiniLM, a small cross-encoder",
        "static, qrels+.05": "a static model, labels",
        "static, ce-minilm-multi": "a static model, the cross-encoder",
    }.items():
        for first, (breadth, of) in enumerate(results[key]["judged queries"].items()):
            printed = [digits(of["means"][column]) for column in columns]
            row = " | ".join(["" if first else title, breadth, *printed])
            assert f"| {row} |".replace("|  |", "| |") in WORDS
    worthless = [results[f"minilm, {judge}"] for judge in ("shuffled", "unasked", "inverted")]
    means = results["minilm, qrels+.05"]["judged queries"]["64"]["means"]
    gained, words, hybrid = (digits(means[column])[1:] for column in ("v, data", "words, data", "rank fusion"))
    chosen = [results["minilm, qrels+.05"]["judged queries"][count]["means"] for count in ("64", "200")]
    careful = " and ".join(digits(of["weight, data"]) for of in chosen)
    assert f"the chosen weight gains {careful} at 64 and 200 judged queries" in WORDS
    assert f"nobody chose gains {digits(means['fixed weight'])} on the mean" in WORDS
    link = "[shared words count too](docs/how-to/words.md)"
    readme = f"offsets of 64 judged queries gain {gained}, and {words} where {link}."
    assert f"{readme} A hybrid search, which needs no verdicts, gains {hybrid}." in README
    printed = f"64 judged queries gain {words} nDCG@10 on queries that nobody judged; the offset alone gains {gained}"
    assert f"{printed}, and a hybrid search that asks nobody {hybrid}." in page
    counted = [(each["published"]["data"], each["cells"]) for each in worthless]
    published, cells = map(sum, zip(*counted, strict=True))
    assert f"in {published} of {cells} fits of worthless judges" in WORDS


def test_figures_of_memory_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/memory.py --json benchmarks/results/memory.json` takes two minutes."""
    results = written("memory")
    page = page_of("memory.md")
    names = {
        "similarity and BM25": "ours, before anything is learned",
        "alone": "**ours**",
    }
    for row in results:
        cells = [digits(row[part], form) for part, form in (("all", ".3f"), ("gain", "+.3f"), ("error", ".3f"))]
        cells += [digits(row[part], ".3f") for part in ("before", "new")]
        assert f"| {' | '.join([names.get(row['rival'], row['rival']), *cells])} |" in FIGURES
    printed = {row["rival"]: digits(row["all"], ".3f") for row in results}
    tuned = [
        digits(row["gain"], ".3f") for row in results if row["rival"].endswith(", tuned") and "legs" not in row["rival"]
    ]
    ahead = max(printed[name] for name in printed if "on our legs" in name)
    assert f"rises from {printed['similarity']} by similarity to {printed['alone']}." in page
    assert f"before anything is learned: {printed['similarity and BM25']}." in page
    assert f"gain {max(tuned)} at most where their constant is tuned." in page
    assert f"On top of our two scores such rules reach {ahead}." in page


def test_figures_of_two_embedders_are_those_that_the_benchmarks_wrote() -> None:
    """`cascade.py --embedder e5` and `memory.py --embedders e5`, each with `--json`, beside MiniLM's files."""
    columns = []
    for cascades, memories in [(written(f"cascade{of}"), written(f"memory{of}")) for of in ("", "-e5")]:
        of = {tuple(row[name] for name in ("source", "judged", "repeats", "policy")): row for row in cascades}
        saved = [
            ", ".join(f"{of[source, 200, repeats, 'cascade']['calls']:.0%}"[:-1] for repeats in (0.0, 0.3, 0.6)) + " %"
            for source in ("ce-minilm-multi", "qrels+.05")
        ]
        mine = [row for row in cascades if row["policy"] == "cascade"]
        cells, above = (sum(row[name] for row in mine) for name in ("cells", "labels_all above"))
        lost = f"{digits(sum(row['labels_all'] for row in mine) / len(mine))}, {above} of {cells}"
        cache = of["ce-minilm-multi", 200, 0.0, "cache of vectors, 0.85"]
        recall = {row["rival"]: digits(row["all"], ".3f") for row in memories}
        answered = percent(cache["calls"]) + f"; {digits(cache['labels'], '.3f')}"
        results = ", ".join(recall[rival] for rival in ("similarity", "similarity and BM25", "alone"))
        columns.append([*saved, lost, answered, results])

    assert [row for row in zip(*columns, strict=True) if f"| {' | '.join(row)} |" not in NUMBERS] == []


def test_figures_of_agents_that_credit_themselves_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/poison.py selfhelp --json benchmarks/results/selfhelp.json` takes five minutes."""
    rows = written("selfhelp")["selfhelp"]
    page = page_of("memory.md")
    greedy = [row for row in rows if row["credits itself"]]
    counters, prior, ours, honest = (
        digits(sum(row[name] for row in mine) / len(mine), ".3f")
        for name, mine in (
            ("counters", greedy),
            ("success prior", greedy),
            ("listed", greedy),
            ("listed", [row for row in rows if not row["credits itself"]]),
        )
    )
    assert f"of {counters} of the requests that have nothing to do with it, and a success prior of {prior}" in FIGURES
    assert f"here it is in {ours} of them, as before" in FIGURES
    assert f"of {counters} of the requests that have nothing to do with it. Here it is in {ours} of them, as" in page
    assert ours == honest


def test_figures_of_callers_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/tools.py --callers --json benchmarks/results/callers.json` takes minutes (without stdlib)."""
    rows = written("callers")

    def mean(part: str, **of: str) -> float:
        mine = [row[part] for row in rows if of.items() <= row.items()]
        return float(sum(mine) / len(mine))

    for who in {row["who"] for row in rows}:
        cells = [digits(mean("after", who=who) - mean("before", who=who))]
        for name in dict.fromkeys(row["set"] for row in rows):
            again, first = (digits(mean(part, who=who, set=name), ".3f") for part in ("again@5", "first@10"))
            cells.append(f"{again} / {first}")
        assert f"| {who} | {' | '.join(cells)} |" in FIGURES


def test_figures_of_the_floor_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/tools.py --floor --json benchmarks/results/floor.json` takes two minutes (without stdlib)."""
    rows = written("floor")
    on = [row for row in rows if row["certain"]]
    (texts, most_texts), (tools, most_tools), (own, most_own) = (
        (min(row[part] for row in on), max(row[part] for row in on)) for part in ("texts", "tools", "own")
    )
    assert f"for {digits(texts, '.2f')} to {digits(most_texts, '.2f')} of the requests of four collections" in FIGURES
    assert f"for {digits(tools, '.2f')} to {digits(most_tools, '.2f')} of those of other tools" in FIGURES
    assert f"for {digits(own, '.3f')} to {digits(most_own, '.3f')} of its own" in FIGURES
    certain = {row["set"] for row in on}
    assert certain == {row["set"] for row in rows}
    assert [row["set"] for row in rows if not row["certain"]] == ["apibench-hf"] * 2
    means = [digits(sum(row[part] for row in on) / len(on), form) for part, form in (("texts", ".2f"), ("own", ".3f"))]
    assert f"({means[0]} on the mean)" in FIGURES
    assert f"that it did not see ({means[1]})" in FIGURES


def test_figures_of_nothing_fits_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/nothing.py --json benchmarks/results/nothing.json` takes an hour."""
    rows = written("nothing")
    page = (REPO / "docs" / "how-to" / "nothing-fits.md").read_text(encoding="utf-8")
    lines = {tuple(row[name] for name in ("embedder", "judge", "policy", "judged")): row for row in rows}
    names = {"minilm": "MiniLM", "e5": "e5", "static": "static", "lsa": "LSA"}
    shown = [(embedder, QRELS, policy) for embedder, _, policy, _ in lines if embedder == "minilm" or policy == "floor"]
    shown += [("e5", QRELS, "cosine of the header"), *((name, "ce-minilm-multi", "floor") for name in ("minilm", "e5"))]

    for embedder, judge, policy in dict.fromkeys(shown):
        few, many = (lines[embedder, judge, policy, judged] for judged in (100, 200))
        shares = [f"{100 * few[part]:.0f}/{100 * many[part]:.0f} %" for part in ("alien", "hard", "broken")]
        shares.insert(2, "/".join(digits(row["lost"], ".3f") for row in (few, many)))
        name = names[embedder] if judge == QRELS else f"{names[embedder]}, weak judge"
        assert f"| {' | '.join([name, policy, *shares])} |" in page
    errors = [row["ece"] for row in rows if "ece" in row and row["judged"] >= 100]
    assert f"{digits(min(errors), '.2f')} to {digits(max(errors), '.2f')}" in page
    graded = [row for row in rows if row["judge"].startswith("llama") and row["policy"] == "floor"]
    for part in ("alien", "hard", "lost"):
        low, high = (100 * pick(row[part] for row in graded) for pick in (min, max))
        assert f"{low:.0f} to {high:.0f} %" in page


def test_figures_of_harm_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/harm.py --json benchmarks/results/harm.json` takes minutes; what it wrote is in the tree."""
    parts = written("harm")
    names = {"four collections": "development", "five others": "confirmation", "nine, pooled": "pooled"}
    first, second, pooled = (parts[name] for name in names.values())
    single = first["cells"] + second["cells"]

    def lost(rule: str, *some: Mapping[str, Any]) -> int:
        return round(sum(part["cells"] * part["below -.01"][rule] for part in some))

    rows = []
    for title, part in zip(names, (first, second, pooled), strict=True):
        for rule, named in (("task", "plain"), ("auto", "`auto`"), ("declared", "declared")):
            printed = [digits(part["mean"][rule]), percent(part["below -.01"][rule]), digits(part["worst"][rule])]
            printed += [
                percent(part["of a reranker"][rule][count]) if rule != "task" else "" for count in ("16", "64", "200")
            ]
            head = [title, str(part["cells"])] if rule == "task" else ["", ""]
            rows.append("|" + "|".join(f" {row} " if row else " " for row in (*head, named, *printed)) + "|")
    covered, agreed = (
        " and ".join(
            ", ".join(percent(part["intervals"][rule][name]) for part in (first, second, pooled))
            for rule in ("auto", "declared")
        )
        for name in ("covered", "compatible")
    )
    lies = [
        (part[f"{kind} tasks"], part[f"{kind} published"]) for part in parts.values() for kind in ("blind", "unasked")
    ]
    sentences = [
        " ".join(rows),
        f"in {lost('auto', first, second)} of {single} single-task cells and in {lost('auto', pooled)} of",
        f"{pooled['cells']} pooled ones; with a declared judge in {lost('declared', first, second)} and "
        + str(lost("declared", pooled)),
        f"in {covered} of published cells",
        f"interval and change agree in {agreed} of them",
        f"nothing in {sum(tasks for tasks, _ in lies)} tasks",
    ]

    assert [sentence for sentence in sentences if sentence not in NUMBERS] == []
    assert {published for _, published in lies} == {0.0}
    ungated = [part["below -.01"]["task"] for part in parts.values()]
    harmed = f"{100 * min(ungated):.0f} to {percent(max(ungated))} of"
    worst = digits(min(part["worst"]["auto"] for part in (first, second)))
    readme = (
        f"With one task by more than .01 in {lost('auto', first, second)} of {single} settings (collection, model, "
        f"judge and number of judged queries; worst {worst}), with nine tasks in {lost('auto', pooled)} of "
        f"{pooled['cells']} (worst {digits(pooled['worst']['auto'])}), and without the gate in {harmed} settings:"
    )
    assert readme in README
    page = (REPO / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    assert f"lowers nDCG@10 by more than .01 in {harmed} settings" in " ".join(page.split())


def test_figures_of_rivals_are_those_that_the_benchmark_wrote() -> None:
    """`python -m benchmarks.paper baselines` and `unseen` take minutes; the means that they wrote are in the tree."""
    results = written("rivals")
    shares = {"queries without rewards": "share", "other queries": "share, other queries"}
    shares["unseen documents"] = "share, unseen documents"
    names = {"`auto`": "auto", "`auto`, kept verdicts": "auto + judge", "`local`": "local", "`global`": "global"}
    names |= {"linear": "linear adapter", "mean difference": "mean difference", "ReFIT": "ReFIT", "DART": "DART"}
    names |= {"semantic cache": "semantic cache, cosine 0.9", "IBM": "IBM refinement", "Qdrant": "Qdrant feedback"}
    names |= {"OATS": "OATS (documents)", "NUDGE-N": "NUDGE-N (documents)", "direct rerank": "direct rerank"}

    def cell(part: str, method: str, count: str) -> str:
        value, ours = (round(results[part][each][f"n={count}"], 2) for each in (method, "auto"))
        printed = hundredths(value)
        if part in shares:
            printed += f" ({round(results[shares[part]][method][f'n={count}'])} %)"
        return f"**{printed}**" if value > ours and not method.startswith("auto") else printed

    tables = re.split(
        r"\n\n(?=\| \| (?:16|other))", (REPO / "docs" / "reference" / "rivals.md").read_text(encoding="utf-8")
    )[1:]
    columns = [
        [("all queries", count) for count in ("16", "64", "200", "all")],
        [("queries without rewards", count) for count in ("16", "64", "200")],
        [("other queries", "200"), ("unseen documents", "200")],
    ]
    for table, columns_of in zip(tables, columns, strict=True):
        rows = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()[2:]]
        for title, *printed in rows:
            method = names[max((name for name in names if title.startswith(name)), key=len)]
            assert printed == [cell(part, method, count) for part, count in columns_of]
    numbers = (REPO / "docs" / "reference" / "numbers.md").read_text(encoding="utf-8")
    for title, of in results["repeats"].items():
        printed = [hundredths(of[name]) for name in ("local", "auto", "direct rerank")]
        local, auto = (f"({of[f'{name}, share in %']:.0f} %)" for name in ("local", "auto"))
        (row,) = re.findall(rf"^\| {title} .*", numbers, re.MULTILINE)
        assert row.endswith(f"| {printed[0]} {local} | {printed[1]} {auto} | {printed[2]} |")
    prose = " ".join("".join(tables).split()) + page_of("compare.md")
    kept = " and ".join(
        f"{round(results['share']['auto'][f'n={count}'])} % {rest}"
        for count, rest in (
            ("64", "of what a reranker would gain with 64 judged queries of each collection"),
            ("200", "with 200"),
        )
    )
    assert f"nobody judged, offsets gain {kept}." in prose
    sentences = (
        ("semantic cache, cosine 0.9", "queries without rewards", "200"),
        ("auto", "queries without rewards", "200"),
    )
    cached, moved = (cell(part, method, count).partition(" ")[0] for method, part, count in sentences)
    assert f"gains new ones {cached} points of nDCG@10, offsets {moved}." in prose
    assert (
        f"{round(results['share']['auto']['n=64'])} % at 64 and {round(results['share']['auto']['n=200'])} % at 200"
        in NUMBERS
    )


def test_figures_of_rivals_on_nine_collections_are_those_that_the_benchmark_wrote() -> None:
    """`python -m benchmarks.paper baselines` with two judges takes minutes; its means are in the tree."""
    judges = written("rivals")["nine collections"]
    names = {"`auto`": "auto", "`auto`, declared": "auto, declared", "`auto`, kept verdicts": "auto + judge"}
    names |= {"`local`": "local", "linear": "linear adapter", "mean difference": "mean difference"}
    names |= {"RAGLite": "RAGLite adapter", "direct rerank of": "direct rerank", "direct rerank, if": "reranked"}
    names |= {f"completed matrix, by {way}": f"completed matrix, {way}" for way in ("kernel", "factors")}
    counts = ("4", "16", "64", "200")

    def cell(part: Mapping[str, Mapping[str, float]], method: str, count: str) -> str:
        value, *ours = (round(part[row][count], 2) for row in (method, "auto", "auto, declared"))
        ahead = value > max(ours) and method not in ("auto + judge", "reranked")
        return f"**{hundredths(value)}**" if ahead else hundredths(value)

    page = (REPO / "docs" / "reference" / "rivals.md").read_text(encoding="utf-8")
    tables = re.split(r"\n\n(?=\| \| labels, 4)", page)[1:]
    for table, part in zip(tables, ("queries without rewards", "all queries"), strict=True):
        rows = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()[2:]]
        assert len(rows) > len(counts)
        for title, *printed in rows:
            method = names[max((name for name in names if title.startswith(name)), key=len)]
            assert printed == [cell(of[part], method, count) for of in judges.values() for count in counts]


def test_figures_of_the_demo_are_those_that_it_wrote() -> None:
    """`tttembed demo --json benchmarks/results/demo.json` takes minutes; what it wrote last is in the tree."""
    rows = [DemoRow(**row) for row in written("demo")]
    counts = sorted({row.seen for row in rows})
    start, *later = (tools_demo._line([row for row in rows if row.seen == count], rows) for count in counts)
    results, change, worst = (
        [digits(line[key], form) for line in later]
        for key, form in (("first", ".3f"), ("change", "+.3f"), ("worst", "+.3f"))
    )
    moved = [line["moves"].partition("/")[0] for line in later]
    parts = [
        (name, digits(value, ".3f"), digits(value - start["ndcg10"]))
        for name, value in tools_demo._parts([start, *later]).items()
    ]
    (_, _, by_weight), (_, _, by_offsets), (_, _, both) = parts[1:]
    sentences = [
        f"found first for {digits(start['first'], '.3f')} of them",
        f"after {' / '.join(map(str, counts[1:]))} other requests were seen for {' / '.join(results)};",
        f"nDCG@10 rises from {digits(start['ndcg10'], '.3f')} by {' / '.join(change)}",
        f"(worst split {', '.join(worst)})",
        f"served on {', '.join(moved[:-1])} and {moved[-1]} of the six splits",
        f"Of the last {both} the offsets alone are {by_offsets}, the learned weight of BM25 alone is {by_weight}.",
    ]
    table = "".join(f"| {name} | {value} | {gain} |\n" for name, value, gain in parts[1:])
    readme = (
        f"told what worked for {counts[-1]} requests, and then finds the right tool first for "
        f"{percent(later[-1]['first'])} of other requests, instead of {percent(start['first'])}."
    )

    page = page_of("tools.md")
    assert table in (REPO / "docs" / "reference" / "figures.md").read_text(encoding="utf-8")
    assert f"rises from {parts[0][1]} to {parts[-1][1]}, all of it by the offsets." in page
    assert by_offsets == both
    none = f"`abstain` nothing is found for {percent(later[-1]['none'])} of"
    assert f"{none} requests that no tool of the office serves, and for {percent(later[-1]['lost'])} of" in page
    assert f"{none} 40 everyday requests" in FIGURES
    assert f"a recipe, and for {percent(later[-1]['lost'])} of those that nobody asked before" in FIGURES
    assert readme in README
    assert [sentence for sentence in sentences if sentence not in NUMBERS] == []


def test_figures_of_languages_are_those_that_the_benchmark_wrote() -> None:
    """`python -m benchmarks.language --json benchmarks/results/language.json` takes minutes."""
    results = written("language")
    page = page_of("how-to/languages.md")
    mixed, pairs, words = (results[part] for part in ("mixed", "pairs", "words"))

    def cell(name: str) -> str:
        return f"{digits(mixed[name]['mean'], '.3f')} ({percent(mixed[name]['own language'])})"

    rows = {
        "as it is": [cell("raw"), "", "", ""],
        "means taken off documents: the index written anew": [cell("means off documents"), "", "", ""],
        "one task for all": ["", *(cell(f"one task, {count}") for count in (16, 64, 150))],
        "a task per language": ["", *(cell(f"a task per language, {count}") for count in (16, 64, 150))],
    }
    around = [cell("means"), *(cell(f"means and verdicts, {count}") for count in (16, 64, 150))]
    rows["**means, and verdicts around them**"] = around
    for title, cells in rows.items():
        assert f"| {title} | {' | '.join(cells)} |".replace("|  ", "| ").replace("|  ", "| ") in WORDS
    raw, means, *learned = (
        digits(mixed[f"own, {name}"]["mean"], ".3f") for name in ("raw", "means", "16", "64", "150")
    )
    assert f"{raw} as it is, {means} under the means, and {' / '.join(learned)} after" in WORDS
    hits = [digits(pairs[name]["mean"], ".3f") for name in ("raw", "means", "16", "64")]
    assert "hit@5 {} as it is, {} under the means, {} / {} with 16".format(*hits) in WORDS
    assert f"alone gain less: {digits(mixed['means, documents alone']['mean'], '.3f')}." in WORDS
    behind = {name: row["mean"] - row["words"] for name, row in words.items()}
    others = max(value for name, value in behind.items() if not name.startswith("en"))
    english = max(value for name, value in behind.items() if name.startswith("en"))
    ahead = [digits(-value, ".3f") for name, value in behind.items() if "alone" in name]
    assert f"never more than {digits(others, '.3f')} behind those of the offset" in WORDS
    assert f"(English in one pool: {digits(english, '.3f')}), and {min(ahead)} to {max(ahead)} ahead" in WORDS
    assert others < 0.005
    gained = digits(mixed["means"]["mean"] - mixed["raw"]["mean"], ".3f")
    assert f"[the mean vector of each language](docs/how-to/languages.md) gains {gained} before any verdict" in README
    means, printed, harmed, right = (
        digits(mixed[name]["mean"], ".3f") for name in ("means", "a task per language, 150", "own, means", "own, 64")
    )
    start = digits(mixed["raw"]["mean"], ".3f")
    assert f"means alone raise nDCG@10 from {start} to {means} before any verdict" in page
    assert f"A task per language without means reaches {printed} after 150 judged queries" in page
    assert f"{raw} to {harmed}, until the gate gives them their lists back: {right} after 64" in page


def test_figures_of_the_bridge_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/bridge.py --json benchmarks/results/bridge.json` takes minutes."""
    results = written("bridge")
    page = page_of("how-to/bridge.md")
    titles = {
        "e5:minilm": "multilingual-e5-small on MiniLM's index",
        "minilm:e5": "MiniLM on multilingual-e5-small's index",
        "lsa:minilm": "a bag of words on MiniLM's index",
        "static:minilm": "a static model on MiniLM's index",
    }
    ways = ("rotation", "bridge", "logged", "64", "200", "new, index rebuilt")
    gate = results["gate"]

    assert {*titles} == {*results["pairs"]}
    for pair, of in results["pairs"].items():
        shares = " | ".join(percent(of["share"][way]) for way in ways)
        assert f"| {titles[pair]} | {shares} |" in page
    assert (
        f"In {gate['asked']} cells the gate was asked for nine tenths or all of it. It proved {gate['proven']}" in page
    )
    assert f"of which {gate['below']} kept less on other queries, {gate['below beyond chance']} beyond chance" in page
