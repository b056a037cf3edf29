"""Writes the pages that follow from the code: the verdicts, the gate, the command line, and the store.

`python docs/generate.py` writes them; a test compares what is there with what it would write.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import click
from tttembed_store.sql import schema

from tttembed_rag.cli import main
from tttembed_rag.gate import thresholds
from tttembed_rag.gate.audit import LEAST
from tttembed_rag.offsets import codes
from tttembed_rag.offsets.codes import ANSWERS, UNSOLVED, Question
from tttembed_rag.serving import cascade
from tttembed_rag.vectors.copies import NEAR

HERE = Path(__file__).parent
# How each question is answered, by its code.
TESTS = {
    codes.COMPARE.code: (
        "Two candidates of a query were judged, and their rewards differ; by the judge's rewards, the order that is "
        f"served without offsets has a mean nDCG@10 below {1 - thresholds.LEAST_HEADROOM:g}; they are a judge's, or of "
        "two sources or more; and where nobody declares the judge there are two rewarded queries, of which those "
        f"within {NEAR:g} spreads of cosines of each other are one (cosine {1 - NEAR:g} under all-MiniLM-L6-v2)."
    ),
    codes.MEANS.code: (
        "The first of these that speaks decides: trusted labels of an audit; whoever declares the judge "
        "(`trusted=True`: the application serves its order, or it passed its examination); the data, by a "
        "permutation test within queries: the rewards agree with the retriever more than chance would (p < "
        f"{thresholds.BELIEVED_LEVEL:g}; {thresholds.STRICT_LEVEL:g} where next to no document was judged twice), "
        f"and more than {thresholds.VARIES:.0%} of the variance of rewards lies within documents. Rewards that "
        f"contradict the retriever (p < {thresholds.LEVEL:g}) are refused whoever vouches."
    ),
    codes.FALLS.code: (
        f"Cross-fitting in {thresholds.FOLDS} folds: the KL loss of judged and neighbouring candidates of held-out "
        "queries. Where somebody vouches for the judge, the fall that is to be expected is above zero: the mean of "
        f"the falls and of one more observation of {thresholds.EXPECTED_FALL:g} nats. Where only the data do, its "
        f"lower bound at one-sided level {thresholds.LEVEL:g} (Student's t) is above zero. A task beside a global "
        "offset must lower the loss below that one's. Then their nDCG@10: whoever vouches, the 90 % interval of its "
        "change must not lie below zero. Where somebody vouches for the judge and no fall is proven, a gain above "
        f"{thresholds.LEAST_EXPECTED:g} must be expected: the mean of what was measured and of "
        f"{thresholds.EXPECTED_SHARE:.0%} of what the judge's own order gains, which is known to "
        f"{thresholds.EXPECTED_ERROR:g}, each weighted by its precision."
    ),
    codes.EXPOSED.code: (
        f"No offset changes the share of rewarded queries whose first {thresholds.PLACES_EXPOSED} hold a document by "
        f"over {thresholds.MOST_MOVED:.0%}, where it is the best of more than {thresholds.MOST_MOVED_QUERIES} "
        "questions and its rewards are doubtful: those of sources, and those of a judge that are above the mean and "
        f"vary over the questions less than {thresholds.VARIES:.0%} as much as those of all documents. Of one that "
        "moves further these are left out, and the offset is learned again, "
        f"{thresholds.EXPOSURE_ROUNDS - 1} times at most."
    ),
    codes.AUDITED.code: (
        "Prediction-powered inference: the change of DCG@10 of what was judged, corrected by the labels of an "
        f"audit, has a lower bound above zero at one-sided level {thresholds.AUDIT_LEVEL:g}, of private offsets at "
        f"{thresholds.AUDIT_ALONE_LEVEL:g}; and the labels confirm some of the judge's order. Asked from {LEAST} "
        "labels on; fewer are told."
    ),
    UNSOLVED.code: "The gradient norm is below the tolerance.",
}
# What the owner of an offset can do where a question decides against it.
ADVICE = {
    codes.COMPARE.code: (
        "Judge several candidates of more queries, with a judge that grades them differently and by itself, not by "
        "places or similarities. In a file of votes, log what was shown and not chosen, too, as rows with click or "
        "success 0. For calls of tools `LearnedToolSearch` compares with what the search listed: see "
        "[tools](../tools.md). Where the line says *nothing to gain*, your search already sorts what was judged as it "
        "was judged: that is good news, and nothing is missing."
    ),
    codes.MEANS.code: (
        "Say `trusted=True` of a judge whose order you serve. Check that larger rewards are better, that candidates "
        "that were not judged are left out and not zero, and that the judge sees the query. Of clicks, leave the "
        "column `position` out where all documents are seen at once. Judge more queries. `tttembed report` names "
        "the sources that contradict the retriever."
    ),
    codes.FALLS.code: (
        "Judge about as many more queries as the evidence says; different queries of the task may want different "
        "things."
    ),
    codes.EXPOSED.code: (
        "Look at the documents that are named: sources or the judge overrate them, or underrate them, or somebody "
        "planted them."
    ),
    codes.AUDITED.code: "Label more of the pairs that `tttembed audit draw` asks for; mend the judge.",
    UNSOLVED.code: "Raise the ridge or the tolerance of `Recipe`.",
}
# Why a cascade asks its reranker about every list although some were certified to need none.
CASCADE = {
    codes.LOST: "the cascade lost more than was allowed",
    codes.OTHER_JUDGE: "the offsets were learned from another judge than the cascade asks",
}
CASCADE_MEANS = {
    codes.LOST: (
        f"{cascade.WATCHED} texts came by that are reranked in any case. The lists of those that would have been "
        "served as they are lost more nDCG@10 than was allowed: the mean loss has a lower bound above it, at "
        f"one-sided level {thresholds.CERTIFIED_LEVEL:g}. What is asked is no longer what the certificate was learned "
        "from. Every list is reranked, and every verdict kept, until the next version is served."
    ),
    codes.OTHER_JUDGE: (
        "By its fingerprint it is another model, revision or instruction. What lists lose without one judge says "
        "nothing of another. Every list is reranked."
    ),
}
CASCADE_ADVICE = {
    codes.LOST: "Nothing: the next version learns from what is asked now, and certifies anew.",
    codes.OTHER_JUDGE: "Learn offsets from the verdicts of the reranker that you serve.",
}
# What the docstring of a package says whose names may change.
PRIVATE = "Private: may change without notice."


def pages() -> dict[str, str]:
    """The generated pages by their paths below this folder."""
    written = {f"verdicts/{question.code}.md": verdict(question) for question in ANSWERS}
    written[f"verdicts/{codes.PUBLISHED}.md"] = PUBLISHED
    written |= {f"verdicts/{code}.md": of_cascade(code) for code in CASCADE}
    written["verdicts/index.md"] = index()
    written["reference/gate.md"] = gate()
    written["reference/api.md"] = api()
    written["reference/cli.md"] = command_line()
    written["reference/schema.md"] = tables()
    return written


def verdict(question: Question) -> str:
    """The page of one answer of the gate."""
    return (
        f"# {question.code}: {question.asks}\n\n"
        f"**What it means.** Nothing of this scope is served, because {question.answer}.\n\n"
        f"**How it is tested.** {TESTS[question.code]}\n\n"
        f"**What to do.** {ADVICE[question.code]}\n\n"
        "All questions, in the order in which they are asked: [the gate](../reference/gate.md).\n"
    )


def of_cascade(code: str) -> str:
    """The page of what keeps a cascade from serving lists as they are."""
    return (
        f"# {code}: {CASCADE[code]}\n\n"
        f"**What it means.** {CASCADE_MEANS[code]}\n\n"
        f"**What to do.** {CASCADE_ADVICE[code]}\n\n"
        "What a cascade is: [how much reranking do I need?](../how-to/rerank-less.md).\n"
    )


PUBLISHED = f"""# {codes.PUBLISHED}: published

**What it means.** Rewards that the offset did not learn from say that it helps: surely (p < {thresholds.LEVEL:g}) where
the data vouch for the judge, by expectation where somebody declares it. It is served.

**What to do.** Nothing. Its evidence says who vouched, and by how much nDCG@10 of the judged candidates of held-out
queries changed, with a 90 % interval for queries like those judged. A judge's opinion is generalised, not tested: an
[audit](../how-to/read-the-evidence.md) tests it. `tttembed explain` shows what the offset does to one query, and fresh
rewards keep testing it in [production](../how-to/production.md).
"""


def index() -> str:
    """The list of all verdicts."""
    rows = [f"| [{answer.code}]({answer.code}.md) | {answer.answer} |" for answer in ANSWERS]
    return "\n".join(
        [
            "# Verdicts",
            "",
            "Every offset carries a verdict with a stable code, in `tttembed show`, in logs and in `Evidence.code`.",
            "",
            "| code | why |",
            "|---|---|",
            f"| [{codes.PUBLISHED}]({codes.PUBLISHED}.md) | published: held-out rewards say that it helps |",
            *rows,
            "",
            "A cascade logs why it asks its reranker about every list, although some were certified to need none.",
            "",
            "| code | why |",
            "|---|---|",
            *(f"| [{code}]({code}.md) | {title} |" for code, title in CASCADE.items()),
            "",
        ]
    )


def gate() -> str:
    """The page on the gate, with its questions in order."""
    rows = [f"- [{q.code}](../verdicts/{q.code}.md) **{q.asks}** {TESTS[q.code]}" for q in codes.QUESTIONS]
    return "\n".join(
        [
            "# The gate",
            "",
            "An offset is published only if every question below is answered in its favour. The first two are about",
            "the rewards alone, before anything is learned. The others are about the offset: queries are held out in",
            f"{thresholds.FOLDS} folds, so that each is measured by an offset that never saw it. Who vouches for the",
            "rewards decides how much must be shown: where somebody declares the judge, a gain is to be expected;",
            "where only the data do, it must be proven. What the judge likes is generalised, not tested: clicks need",
            "randomised places or an audit.",
            "",
            *rows,
            "",
            "Gated offsets are learned with a softer teacher and student than the paper's, and learn that the nearest",
            "documents that nobody judged are no better than the worst judged one: there a shared offset does its",
            "harm. With `auto` each task has one local offset. From four tasks on there is a global one, tried on",
            "tasks that it did not learn from: tasks learn their own around it, and a task whose rewards do not decide",
            "keeps it, unless they speak against it. A query logged twice is one observation, also if it was embedded",
            "anew. Every number stands with its reason in `tttembed_rag/gate/thresholds.py`, from which this page is",
            "made.",
            "",
        ]
    )


def command_line() -> str:
    """The help of every command, as it is printed."""
    parts = ["# The command line", ""]
    for name, command in sorted(commands().items()):
        with click.Context(command, info_name=f"tttembed {name}", max_content_width=100, show_default=True) as context:
            parts += [f"## tttembed {name}", "", "```output", command.get_help(context), "```", ""]
    return "\n".join(parts)


def commands(group: click.Group = main, before: str = "") -> dict[str, click.Command]:
    """The commands below *group*, those of other distributions too, by what is typed after `tttembed`."""
    by_name: dict[str, click.Command] = {}
    context = click.Context(group, info_name="tttembed")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None  # noqa: S101 - it is listed
        by_name[f"{before}{name}"] = command
        if isinstance(command, click.Group):
            by_name |= commands(command, f"{before}{name} ")
    return by_name


def api() -> str:
    """The names that applications import: those that public packages list."""
    parts = [
        "# Python",
        "",
        "The names that applications import. Every other name, and every package that is not here, may change without",
        "notice.",
        "",
    ]
    for package in public_packages():
        module = import_module(package)
        parts += [f"## {package}", "", "| name | what it is |", "|---|---|"]
        parts += [f"| `{name}` | {first_sentence(getattr(module, name))} |" for name in module.__all__]
        names = ", ".join(module.__all__)
        parts += ["", f"::: {package}", "    options:", f"      members: [{names}]", ""]
    return "\n".join(parts)


def first_sentence(value: object) -> str:
    """What the docstring of a class or a function says first."""
    text = inspect.getdoc(value) if inspect.isclass(value) or inspect.isroutine(value) else None
    return " ".join((text or "A constant, or a name of a type.").partition("\n\n")[0].split()).replace("|", "\\|")


def public_packages() -> list[str]:
    """The packages whose docstring does not say that they may change, each distribution's own first; then modules."""
    names = []
    for top in ("tttembed_rag", "tttembed_store", "tttembed_tools"):
        names.append(top)
        for below in walk_packages(import_module(top).__path__, f"{top}."):
            if (
                below.ispkg
                and below.name.rpartition(".")[0] in names
                and PRIVATE not in str(import_module(below.name).__doc__)
                and hasattr(import_module(below.name), "__all__")
            ):
                names.append(below.name)
    return [*names, "tttembed_rag.adapting", "tttembed_rag.testing"]


def tables() -> str:
    """The tables of a store, with the comments that stand above them and above their columns in the code."""
    notes = comments(Path(schema.__file__).read_text(encoding="utf-8"))
    parts = [
        "# The tables of a store",
        "",
        "SQLite or PostgreSQL, the same tables in both; opening a store makes them where none are. A column that",
        "refers to another table has its singular as name, and the id there as value. Read them as you like, and write",
        f"through `tttembed_store.sql` alone: its guarantees live there. This is revision {schema.HEAD}.",
        "",
    ]
    for table in schema.metadata.sorted_tables:
        parts += [f"## {table.name}", ""]
        parts += [notes[table.name, ""], ""] if (table.name, "") in notes else []
        parts += ["| column | type | key | what |", "|---|---|---|---|"]
        for column in table.columns:
            key = ["primary"] * column.primary_key + [f"`{foreign.target_fullname}`" for foreign in column.foreign_keys]
            kind = f"{str(column.type).lower()}{' or null' if column.nullable else ''}"
            parts.append(
                f"| `{column.name}` | {kind} | {', '.join(key)} | {notes.get((table.name, column.name), '')} |"
            )
        parts.append("")
    return "\n".join(parts)


def comments(source: str) -> dict[tuple[str, str], str]:
    """The comments of the tables in *source*, by table and column; of a table itself the column is empty."""
    notes, above, table = dict[tuple[str, str], str](), list[str](), ""
    for line in map(str.strip, source.splitlines()):
        if line.startswith("#"):
            above.append(line.removeprefix("# "))
            continue
        if match := re.match(r"(\w+) = _table\(", line):
            table, column = match[1], ""
        elif match := re.match(r'Column\("(\w+)"|_(name)\(', line):
            column = match[1] or match[2]
        elif match := re.match(r'_of\("(\w+)"', line):
            column = match[1].removesuffix("s") if match[1] != "queries" else "query"
        else:
            above = []
            continue
        if above:
            notes[table, column] = " ".join(above)
        above = []
    return notes


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).parent.mkdir(parents=True, exist_ok=True)
        (HERE / name).write_text(text, encoding="utf-8")
