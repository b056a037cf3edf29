"""`tttembed judge`: rewards for the candidates of served queries."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tttembed_rag.cli.embedding import cached_embedder, embed_folder, embedded_by
from tttembed_rag.cli.group import Many, counted, main, text
from tttembed_rag.system.progress import stoppable, working

if TYPE_CHECKING:
    from tttembed_rag.evaluate.datasets import Dataset
    from tttembed_rag.judging.plan import Plan, Progress, Verdicts
    from tttembed_rag.judging.spending import Price
    from tttembed_rag.rewards.observations import Served
    from tttembed_rag.vectors.checks import FloatArray


@main.command(short_help="Score candidates of served queries, each once, under a budget.")
@click.argument("source", metavar="DIR|LOG", type=Path)
@click.option("--judge", "spec", required=True, metavar="SPEC", help="Who judges; see above.")
@click.option(
    "--vectors", metavar="NAME", help="Stored vectors of DIR: vectors/NAME.npz.  [default: minilm, or by --embed]"
)
@embedded_by("the texts of DIR first, as `tttembed data` does")
@click.option(
    "--depth",
    "depths",
    default="10",
    type=Many(int, "K,..."),
    help="Candidates per query, in stages: 10,30 judges every query to 10 first. 1,2,3 is breadth first.",
)
@click.option(
    "--order",
    type=click.Choice(("drawn", "cover")),
    default="drawn",
    help="Queries at random by --seed, or first those of which verdicts say most about what is asked.",
)
@text("--budget", "CAPS", "pairs=N,tokens=N,usd=N; without a part no such cap.")
@text("--price", "USD", "input=N,output=N (per million tokens), request=N (each).")
@click.option("--out", type=Path, help="Where rewards go.  [default: DIR/scores/JUDGE.tsv]")
@click.option("--cache", "cache_path", type=Path, help="Paid scores.  [default: beside --out]")
@counted("--concurrency", 8, "Calls in flight at once.")
@counted("--seed", 1000, "Order of the queries of a task.", least=0)
@click.option("--dry-run", is_flag=True, help="Print the forecast of pairs, tokens and money, and ask nothing.")
@click.option("--no-examination", is_flag=True, help="Ask a judge that does not pass 24 plain questions first.")
@click.option("--json", "as_json", is_flag=True, help="The outcome as one JSON object.")
def judge(
    source: Path,
    spec: str,
    vectors: str | None,
    embed: str | None,
    depths: tuple[int, ...],
    order: str,
    budget: str,
    price: str,
    out: Path | None,
    cache_path: Path | None,
    concurrency: int,
    seed: int,
    *,
    dry_run: bool,
    no_examination: bool,
    as_json: bool,
) -> None:
    """Score the candidates of served queries, each pair once, under a budget.

    DIR is a BEIR folder with vectors/NAME.npz, LOG a file of JSON lines: query_id, query, task,
    candidates [{id, text}]. SPEC is yesno:MODEL, cross-encoder:MODEL, rubric:MODEL (a local chat model),
    openai:MODEL (any service that speaks its chat, by ?url=), anthropic:MODEL, gemini:MODEL, a vendor's reranker
    (cohere:MODEL, jina:MODEL, voyage:MODEL), http+SHAPE://HOST or https+SHAPE://HOST (cohere, jina, voyage, vllm,
    vllm-score, tei, sglang, decision, gemini-decision), python:MODULE:NAME or feedback:FILE (CSV, TREC qrels,
    OpenSearch JSON); options follow as ?name=value&...

    The CSV of feedback has the columns query_id, doc_id, signal and value, and may have position. Signals: thumb
    (1 up, -1 down, 0 taken back), click (1 clicked, 0 shown and not clicked, weighed by position), success (1 the
    document served the task, 0 it did not), judgment (a grade, on ?scale=rubric:LOW,HIGH).

    Rewards are written in [0, 1]. Run it again to continue: no pair is paid for twice.
    """
    from tttembed_rag.evaluate.files import load_beir, write_scores
    from tttembed_rag.judges.specs import FREE
    from tttembed_rag.judging.covering import in_covering_order
    from tttembed_rag.judging.plan import Plan
    from tttembed_rag.judging.spending import Budget, Price

    if source.suffix.lower() in (".csv", ".tsv"):
        raise click.UsageError(f"{source}: expected a folder or a log; votes need no judge: tttembed fit {source}")
    target = out or default_target(source, spec)
    if target.is_dir() or str(target) == "-":
        raise click.UsageError(f"{target}: expected a file, got {'a folder' if target.is_dir() else 'a dash'}")
    caps = Budget.parse(budget)
    feedback = spec.startswith("feedback:")
    if not price and (feedback or spec.partition(":")[0] in FREE):
        caps = replace(caps, usd=None)
    draft = Plan([], depths, caps, Price.parse(price), None if order == "cover" else seed)
    dataset = load_beir(source, labels=False) if source.is_dir() else None
    if dataset is None and embed is not None and order != "cover":  # which asks for the vectors of a log's queries
        raise click.UsageError(
            f"--embed: expected a folder, got {source}: a log names its candidates, and is judged without vectors "
            f"(`tttembed fit {source} --embed {embed}` asks for them)"
        )
    if dataset is not None and embed is not None:
        vectors = embed_folder(source, dataset, embed, vectors)[0].stem
    served, queries = _served(source, dataset, vectors or "minilm", max(depths))
    if order == "cover":
        queries = _embedded(source, served, embed) if queries is None else queries
        served = in_covering_order(served, queries, key=str(seed).encode())
    plan = replace(draft, observations=served)
    if feedback:
        verdicts = _by_feedback(spec, plan, dataset)
    else:
        cache = cache_path or target.parent / ".paid-scores.sqlite"
        verdicts = _by_calls(spec, plan, cache, concurrency, examine=not no_examination, dry_run=dry_run)
    if not dry_run:
        write_scores(target, verdicts.rewards)
    record, line = _summary(spec, plan, verdicts, None if dry_run else target)
    click.echo(json.dumps(record) if as_json else line)
    if verdicts.broken:  # exit code 1 tells scripts that the judge broke down
        raise click.exceptions.Exit(1)


def _served(source: Path, dataset: Dataset | None, vectors: str, depth: int) -> tuple[list[Served], FloatArray | None]:
    """Queries with their candidates: those of a log, or of a folder's stored *vectors* the first *depth* of each.

    Beside them stand the vectors of a folder's queries.
    """
    from tttembed_rag.evaluate.files import load_vectors
    from tttembed_rag.evaluate.index import FaissIndex
    from tttembed_rag.rewards.observations import Served
    from tttembed_rag.rewards.rows import read_log

    if dataset is None:
        return read_log(source), None
    docs, queries = load_vectors(source, vectors, dataset)
    base = FaissIndex.from_vectors(docs).search(queries, depth, own=dataset.own)[1]
    documents = list(dataset.documents.items())
    served = [
        Served.of_texts(query, text, [documents[row] for row in rows], dataset.name)
        for (query, text), rows in zip(dataset.queries.items(), base.tolist(), strict=True)
    ]
    return served, queries


def _by_feedback(spec: str, plan: Plan, dataset: Dataset | None) -> Verdicts:
    """The scores that a file of feedback, ``feedback:FILE`` or ``feedback:FILE?scale=rubric:0,3``, has for *plan*."""
    from tttembed_rag.clients.options import Options
    from tttembed_rag.judging.plan import Progress, verdicts_of
    from tttembed_rag.rewards.events import Feedback
    from tttembed_rag.rewards.rows import read_events
    from tttembed_rag.rewards.scales import Scale

    options = Options("judge", spec)
    scale = options.take("scale", "")
    options.check_all_used()
    events = list(read_events(Path(options.target)))
    feedback = Feedback.of(events, scale=Scale.parse(scale) if scale else None)
    served_queries = {served.query_id: served.query for served in plan.observations}
    shown = {candidate.doc_id: candidate.text for served in plan.observations for candidate in served.candidates}
    # The texts of the whole collection, not of its candidates alone.
    scores = feedback.by_text(*((served_queries, shown) if dataset is None else (dataset.queries, dataset.documents)))
    pairs = [
        (served.query_id, candidate.doc_id, scores.get((served.query, candidate.text)))
        for served, candidates in plan.visits()
        for candidate in candidates
    ]
    return verdicts_of(feedback.scale, pairs, Progress(len(pairs)))


def _by_calls(spec: str, plan: Plan, cache_path: Path, concurrency: int, *, examine: bool, dry_run: bool) -> Verdicts:
    """The scores that a judge gives; of a *dry_run* the forecast alone."""
    from tttembed_rag.judges.specs import open_judge
    from tttembed_rag.judging.cache import ScoreCache
    from tttembed_rag.judging.plan import Verdicts
    from tttembed_rag.judging.running import judge_all
    from tttembed_rag.judging.walk import forecast

    scorer = open_judge(spec)
    makes_no_file = dry_run and not cache_path.exists()
    if not makes_no_file:
        cache_path.parent.mkdir(parents=True, exist_ok=True)
    with closing(ScoreCache.open(None if makes_no_file else cache_path)) as cache:
        ahead = forecast(plan, scorer, cache, examine=examine)
        if dry_run:
            return Verdicts({}, 0, ahead)
        started = time.monotonic()
        with working(ahead.pairs, "judge") as bar:

            def watch(now: Progress) -> None:
                rate = (now.pairs - now.cached) / max(1e-9, time.monotonic() - started)
                bar.update(now.pairs - bar.pos, f"{rate:.1f} pairs/s  {_money(now.usd, plan.price)}")

            with stoppable(lambda: f"the answers to {bar.pos} pairs are kept; run it again to go on"):
                return judge_all(plan, scorer, cache, concurrency=concurrency, watch=watch, examine=examine)


def _embedded(source: Path, served: Sequence[Served], embed: str | None) -> FloatArray:
    """The vectors of the queries of a log by the model *embed*."""
    if embed is None:
        raise click.UsageError("--order cover: expected --embed SPEC with a log, which has no vectors of its queries")
    with cached_embedder(embed, source.parent / "scores" / ".known.sqlite", len(served)) as model:
        return model.embed_queries([observation.query for observation in served])


def default_target(source: Path, spec: str) -> Path:
    """The default file of rewards: scores/JUDGE.tsv in the folder, or beside the log."""
    name = spec.partition("?")[0].rstrip("/").rpartition("/")[2].rpartition(":")[2]
    if spec.startswith("feedback:"):
        name = name.removesuffix(Path(name).suffix)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", name)
    return (source if source.is_dir() else source.parent) / "scores" / f"{name.strip('-.') or 'judge'}.tsv"


def _money(usd: float, price: Price, bound: str = "") -> str:
    """What was or will be paid, in words; a judge without a price is one on a machine of yours, or was given none."""
    from tttembed_rag.judging.spending import Price

    return "no price known" if not usd and price == Price() else f"{bound}${usd:.4f}"


def _summary(spec: str, plan: Plan, verdicts: Verdicts, target: Path | None) -> tuple[dict[str, Any], str]:
    """The result of judging, or its forecast where no *target* is written, as a JSON object and in words."""
    progress, of = verdicts.progress, plan.pairs
    record: dict[str, Any] = {
        "judge": spec,
        "planned": of,
        "pairs": progress.pairs,
        "cached": progress.cached,
        **asdict(progress.usage),
        "usd": round(progress.usd, 6),
    }
    what, bound = ("forecast", "at most ") if target is None else ("judged", "")
    line = (
        f"{what}: {progress.pairs} of {of} pairs, {progress.cached} known before, {bound}{progress.usage.tokens} "
        f"tokens, {_money(progress.usd, plan.price, bound)}"
    )
    if target is None:
        line += ", with its examination if it has not passed that before" if progress.usage.requests else ""
        return record, f"{line}; time unknown before the judge is asked: on a terminal a run shows its rate"
    line += f"; {verdicts.unjudged} without a score; written to {target} (scale: probability)"
    raised = "raise it and " if verdicts.stopped.startswith("budget:") else ""
    line += f"\nnot judged: {next(iter(verdicts.failed.values()))}" if verdicts.failed else ""
    line += f"\nstopped: {verdicts.stopped}; {raised}run again to continue" if verdicts.stopped else ""
    return record | {"unjudged": verdicts.unjudged, "stopped": verdicts.stopped, "out": str(target)}, line
