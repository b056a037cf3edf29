"""The `tttembed` command: bad input ends with exit code 2 and one line of reason."""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tttembed_rag import __version__
from tttembed_rag.errors import TTTEmbedError
from tttembed_rag.offsets import Offset, Offsets
from tttembed_rag.rewards import Scale

if TYPE_CHECKING:
    from tttembed_rag.judging import Progress, Verdicts

ValueT = TypeVar("ValueT")


class _Commands(click.Group):
    """Turns the package's own errors, and files that cannot be used, into one line and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader has seen enough: not bad input
        except (TTTEmbedError, OSError) as exc:
            raise click.UsageError(str(exc)) from exc


class _Many(click.ParamType[tuple[Any, ...]]):
    """Values separated by commas."""

    def __init__(self, convert: Callable[[str], ValueT], name: str) -> None:
        self._convert = convert
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._convert(part.strip()) for part in str(value).split(",") if part.strip())
        except ValueError:
            self.fail(f"expected values separated by commas, got {value!r}", param, ctx)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="tttembed")
def main() -> None:
    """Learn small offsets for a frozen retriever from rewards, and publish them only on evidence."""


@main.command("eval")
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option("--vectors", default="minilm", show_default=True, help="Stored vectors: vectors/NAME.npz.")
@click.option("--rewards", default="qrels", show_default=True, help="scores/NAME.tsv, or qrels (simulated judge).")
@click.option("--scale", default="probability", show_default=True, help="probability, logit or rubric:LOW,HIGH.")
@click.option("--depth", default=10, show_default=True, help="Rewarded candidates per query.")
@click.option("--rewarded", default="16,64,200", show_default=True, type=_Many(int, "N,..."), help="Queries per task.")
@click.option("--seeds", default="0,1,2", show_default=True, type=_Many(int, "N,..."), help="Splits.")
@click.option("--holdout", default=0.3, show_default=True, help="Share of queries never rewarded.")
@click.option("--scopes", default="global,task,query,auto", show_default=True, type=_Many(str, "NAME,..."))
@click.option("--baselines", default="raw,rerank", show_default=True, type=_Many(str, "NAME,..."))
@click.option("--gate", type=click.Choice(["both", "on", "off"]), default="both", show_default=True)
@click.option("--objective", type=click.Choice(["kd", "reverse_kl", "softmax_grpo"]), default="kd", show_default=True)
@click.option("--solver", type=click.Choice(["exact", "adam"]), default="exact", show_default=True)
@click.option("--index", type=click.Choice(["flat", "hnsw"]), default="flat", show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the rows there; - is stdout.")
def evaluate(
    folders: tuple[Path, ...],
    vectors: str,
    rewards: str,
    scale: str,
    gate: str,
    index: Any,
    json_path: Path | None,
    **plan: Any,
) -> None:
    """Fit on some queries of BEIR folders, measure nDCG@10 on the others.

    Each DIR is a BEIR folder with vectors/NAME.npz and, unless the labels act as a simulated judge,
    scores/NAME.tsv. Several folders are several tasks of one workload.
    """
    from tttembed_rag.evaluate.experiment import Plan, open_collection, run

    _check_target(json_path)
    settings = Plan(gates={"both": (True, False), "on": (True,), "off": (False,)}[gate], **plan)
    declared = Scale.parse(scale)
    workload = [
        open_collection(folder, vectors=vectors, rewards=rewards, scale=declared, index=index) for folder in folders
    ]
    outcomes = len(settings.contestants) + len(settings.baselines)
    total = len(settings.seeds) * len(settings.rewarded) * len(workload) * outcomes * 3
    hidden = not sys.stderr.isatty()
    with click.progressbar(run(workload, settings), total, label="eval", file=sys.stderr, hidden=hidden) as bar:
        rows = [row.as_dict() for row in bar]
    if json_path is not None:
        _write_json(json_path, rows)
    if json_path is None or str(json_path) != "-":
        click.echo(_summary(rows))


@main.command()
@click.option("--data", type=click.Path(path_type=Path), help="A BEIR folder instead of the Python standard library.")
@click.option("--vectors", help="Stored vectors of that folder; without, its texts are embedded.")
@click.option("--rewards", default="qrels", show_default=True, help="scores/NAME.tsv of that folder, or qrels.")
@click.option("--scale", default="probability", show_default=True, help="probability, logit or rubric:LOW,HIGH.")
@click.option("--seeds", default="0,1,2,3,4,5", show_default=True, type=_Many(int, "N,..."), help="Splits.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("tttembed-demo"), show_default=True, help="Report folder."
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the rows there; - is stdout.")
def demo(
    data: Path | None,
    vectors: str | None,
    rewards: str,
    scale: str,
    seeds: tuple[int, ...],
    out: Path,
    json_path: Path | None,
) -> None:
    """Watch a frozen embedding model get better at a real retrieval job from rewards alone."""
    from tttembed_rag.demo.run import run_demo

    if data is None and (vectors or rewards != "qrels"):
        raise click.UsageError("--vectors and --rewards need a folder: --data DIR")
    _check_target(json_path)
    quiet = json_path is not None and str(json_path) == "-"
    say: Callable[[str], None] = (lambda _: None) if quiet else click.echo
    rows = run_demo(data, vectors, rewards, Scale.parse(scale), seeds, out, say)
    if json_path is not None:
        _write_json(json_path, rows)


@main.command()
@click.argument("source", metavar="DIR|LOG", type=click.Path(path_type=Path))
@click.option("--judge", "spec", required=True, metavar="SPEC", help="Who judges; see above.")
@click.option("--vectors", default="minilm", show_default=True, help="Stored vectors of DIR: vectors/NAME.npz.")
@click.option(
    "--depth",
    "depths",
    default="10",
    show_default=True,
    type=_Many(int, "K,..."),
    help="Candidates per query, in stages: 10,30 judges every query to 10 first. 1,2,3 is breadth first.",
)
@click.option("--budget", default="", metavar="CAPS", help="pairs=N,tokens=N,usd=N; without a part no such cap.")
@click.option("--price", default="", metavar="USD", help="input=N,output=N (per million tokens), request=N (each).")
@click.option("--out", type=click.Path(path_type=Path), help="Where rewards go.  [default: DIR/scores/JUDGE.tsv]")
@click.option("--cache", "cache_path", type=click.Path(path_type=Path), help="Paid scores.  [default: beside --out]")
@click.option("--concurrency", default=8, show_default=True, help="Calls in flight at once.")
@click.option("--seed", default=1000, show_default=True, help="Order of the queries of a task.")
@click.option("--dry-run", is_flag=True, help="Print the forecast and ask nothing.")
@click.option("--no-probe", is_flag=True, help="Trust the judge without a plainly good and a plainly bad pair.")
@click.option("--json", "as_json", is_flag=True, help="The outcome as one JSON object.")
def judge(
    source: Path,
    spec: str,
    vectors: str,
    depths: tuple[int, ...],
    budget: str,
    price: str,
    out: Path | None,
    cache_path: Path | None,
    concurrency: int,
    seed: int,
    *,
    dry_run: bool,
    no_probe: bool,
    as_json: bool,
) -> None:
    """Score the candidates of served queries, each pair once, under a budget.

    DIR is a BEIR folder with vectors/NAME.npz, LOG a file of JSON lines: query_id, query, task,
    candidates [{id, text}]. SPEC is yesno:MODEL, cross-encoder:MODEL, rubric:MODEL (a local chat model),
    gemini:MODEL, http+SHAPE://HOST or https+SHAPE://HOST (cohere, jina, vllm, vllm-score, tei, sglang,
    decision, gemini-decision) or feedback:FILE (CSV, TREC qrels, OpenSearch JSON); options follow as ?name=value&...

    Rewards are written in [0, 1]. Run it again to continue: no pair is paid for twice.
    """
    from tttembed_rag.evaluate.observed import observe
    from tttembed_rag.judges.cache import ScoreCache
    from tttembed_rag.judges.feedback import FeedbackJudge
    from tttembed_rag.judges.specs import FREE, open_judge
    from tttembed_rag.judges.spending import Budget, Price
    from tttembed_rag.judging import BUDGET_ENDED, Plan, check_once, forecast, judge_all, write_scores

    target = out or _default_target(source, spec)
    if target.is_dir():
        raise click.UsageError(f"{target}: expected a file, got a folder")
    caps = Budget.parse(budget)
    if not price and spec.partition(":")[0] in FREE:
        caps = replace(caps, usd=None)
    draft = Plan([], depths, caps, Price.parse(price), seed)
    served = observe(source, vectors=vectors, depth=max(depths))
    plan = replace(draft, observations=served)
    who = open_judge(
        spec,
        queries={one.query_id: one.query for one in served},
        documents={document: text for one in served for document, text in one.candidates},
    )
    with closing(ScoreCache.open(_cache_path(cache_path, target, dry_run=dry_run))) as cache:
        probe = not no_probe and not isinstance(who, FeedbackJudge)
        ahead = forecast(plan, who, cache, probe=probe)
        if dry_run:
            _report("forecast", spec, ahead, as_json=as_json, of=plan.pairs)
            return
        if probe and ahead.pairs > ahead.cached:  # nothing is paid where nothing will be asked
            check_once(who, cache, price=plan.price)
        hidden, started = not sys.stderr.isatty(), time.monotonic()
        with click.progressbar(
            length=max(1, ahead.pairs), label="judge", file=sys.stderr, hidden=hidden, item_show_func=lambda text: text
        ) as bar:

            def watch(now: Progress) -> None:
                rate = (now.pairs - now.cached) / max(1e-9, time.monotonic() - started)
                bar.update(now.pairs - bar.pos, f"{rate:.1f} pairs/s  ${now.usd:.4f}")

            verdicts = judge_all(plan, who, cache, concurrency=concurrency, watch=watch)
    write_scores(target, verdicts)
    _report("judged", spec, verdicts.progress, as_json=as_json, of=plan.pairs, verdicts=verdicts, target=target)
    if verdicts.stopped not in ("", BUDGET_ENDED):
        raise click.exceptions.Exit(1)  # the judge broke down: what it said is written, scripts should know


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per offset.")
def show(file: Path, *, as_json: bool) -> None:
    """Print what every offset of a saved FILE was learned from and on what evidence it is served."""
    offsets = Offsets.load(file)
    for offset in offsets.values():
        click.echo(json.dumps(_facts(offset)) if as_json else _line(offset))


@main.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("query_id", metavar="QUERY_ID")
@click.option(
    "--offsets", "file", required=True, metavar="FILE", type=click.Path(path_type=Path), help="Saved offsets."
)
@click.option("--vectors", default="minilm", show_default=True, help="Stored vectors of DIR: vectors/NAME.npz.")
@click.option("--rewards", help="scores/NAME.tsv of DIR, or qrels: what was said of each document.")
@click.option("--task", help="Task key of the query.  [default: the name of DIR]")
@click.option("--top", default=10, show_default=True, help="First results looked at, before and after.")
@click.option("--json", "as_json", is_flag=True, help="The explanation as one JSON object.")
def explain(folder: Path, query_id: str, file: Path, *, as_json: bool, **options: Any) -> None:
    """Print which documents rose and fell for one query under saved offsets, and what the judge said of them."""
    from tttembed_rag.evaluate import explaining

    found = explaining.explain(folder, query_id, Offsets.load(file), **options)
    if as_json:
        moves = {"rose": [asdict(move) for move in found.rose], "fell": [asdict(move) for move in found.fell]}
        click.echo(json.dumps({"query_id": query_id, "query": found.text, "offset": _facts(found.offset)} | moves))
        return
    click.echo(f"{query_id}: {_shortened(found.text, 90)}\nserved by {_line(found.offset)}")
    for word, moves_ in (("rose", found.rose), ("fell", found.fell)):
        for move in moves_:
            reward = "not judged" if move.reward is None else f"reward {move.reward:g}"
            click.echo(
                f"{word} {abs(move.rank - move.rank_before):>4}: {move.rank_before:>5} -> {move.rank:<5} "
                f"score {move.score_before:.3f} {move.score - move.score_before:+.3f}  {reward:<12} "
                f"{move.document}: {_shortened(move.text, 60)}"
            )
    click.echo(f"{len(found.moves) - len(found.rose) - len(found.fell)} documents kept their rank")


def _facts(offset: Offset) -> dict[str, Any]:
    """What is known of an offset, without its vector."""
    evidence = offset.evidence
    return {
        "key": offset.key,
        "served": offset.served,
        "alpha": offset.alpha,
        "n": offset.n,
        "gain": evidence.gain,
        "interval": evidence.interval,
        "verdict": evidence.verdict,
        "reason": evidence.reason,
        "needed": evidence.needed,
    }


def _line(offset: Offset) -> str:
    """The same in one line a person understands."""
    noun = "query" if offset.n == 1 else "queries"
    return f"{offset.key}: {offset.n} rewarded {noun}, dose {offset.alpha:.2f}, {offset.evidence}"


def _shortened(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder="...")


def _default_target(source: Path, spec: str) -> Path:
    """scores/JUDGE.tsv in the folder, or beside the log."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", spec.partition("?")[0].rstrip("/").rpartition("/")[2].rpartition(":")[2])
    return (source if source.is_dir() else source.parent) / "scores" / f"{name.strip('-.') or 'judge'}.tsv"


def _cache_path(path: Path | None, target: Path, *, dry_run: bool) -> Path | None:
    """Where paid scores are kept; a dry run makes no file."""
    chosen = path or target.parent / ".paid-scores.sqlite"
    if dry_run and not chosen.exists():
        return None
    chosen.parent.mkdir(parents=True, exist_ok=True)
    return chosen


def _report(
    what: str,
    spec: str,
    progress: Progress,
    *,
    as_json: bool,
    of: int,
    verdicts: Verdicts | None = None,
    target: Path | None = None,
) -> None:
    """One line, or one JSON object, on what judging costs or did."""
    record: dict[str, Any] = {
        "judge": spec,
        "planned": of,
        "pairs": progress.pairs,
        "cached": progress.cached,
        "requests": progress.usage.requests,
        "input_tokens": progress.usage.input_tokens,
        "output_tokens": progress.usage.output_tokens,
        "usd": round(progress.usd, 6),
    }
    if verdicts is not None:
        record |= {"unjudged": verdicts.unjudged, "stopped": verdicts.stopped, "out": str(target)}
    if as_json:
        click.echo(json.dumps(record))
        return
    bound = "at most " if verdicts is None else ""
    line = (
        f"{what}: {progress.pairs} of {of} pairs, {progress.cached} known before, {bound}"
        f"{progress.usage.tokens} tokens, {bound}${progress.usd:.4f}"
    )
    if verdicts is not None:
        line += f"; {verdicts.unjudged} without a score; written to {target} (scale: probability)"
        raised = "raise it and " if verdicts.stopped.startswith("budget:") else ""
        line += f"\nstopped: {verdicts.stopped}; {raised}run again to continue" if verdicts.stopped else ""
    click.echo(line)


def _check_target(path: Path | None) -> None:
    """Refuse a target in a missing folder before the work starts, not after."""
    if path is not None and str(path) != "-" and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise click.UsageError(f"{path}: expected a file in an existing folder")


def _write_json(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    clean = [
        {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
        for row in rows
    ]
    text = json.dumps(clean, indent=1)
    if str(path) == "-":
        click.echo(text)
    else:
        path.write_text(text + "\n", encoding="utf-8")


def _summary(rows: Iterable[dict[str, Any]]) -> str:
    """Means over seeds on held-out and on rewarded queries, one line per cell."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["population"] != "all":
            label = f"{row['scope']}{'' if row['scope'] in ('raw', 'rerank', 'auto') or row['gated'] else ' ungated'}"
            cells.setdefault((row["dataset"], row["population"], row["rewarded"], label), []).append(row)
    judge = next(iter(cells.values()))[0]
    lines = [
        f"nDCG@10, mean of seeds; rewards: {judge['rewards']}{' (simulated judge)' if judge['simulated'] else ''}",
        (
            f"{'data set':<24}{'queries':<10}{'rewarded':>8}  {'scope':<15}{'raw':>7}{'nDCG':>7}{'delta':>8}"
            f"{'worst':>8}{'harmed':>8}{'published':>11}"
        ),
    ]
    for (dataset, population, rewarded, label), cell in sorted(cells.items()):
        mean = {key: sum(row[key] for row in cell) / len(cell) for key in ("raw_ndcg10", "ndcg10", "delta")}
        harmed = sum(row["harmed_fraction"] for row in cell) / len(cell)
        published = f"{sum(row['published'] for row in cell)}/{len(cell)}"
        lines.append(
            f"{dataset:<24.24}{population:<10}{rewarded:>8}  {label:<15}{mean['raw_ndcg10']:>7.3f}"
            f"{mean['ndcg10']:>7.3f}{mean['delta']:>+8.3f}{min(row['delta'] for row in cell):>+8.3f}"
            f"{harmed:>8.1%}{published:>11}"
        )
    return "\n".join(lines)
