"""`tttembed judge`: rewards for the candidates of served queries."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tttembed_rag.cli.embedding import cached_embedder, embed_folder, embedded_by
from tttembed_rag.cli.group import Many, counted, main
from tttembed_rag.cli.progress import working

if TYPE_CHECKING:
    from tttembed_rag.judging.plan import Plan, Progress, Verdicts
    from tttembed_rag.judging.spending import Price
    from tttembed_rag.rewards.observations import Observation


@main.command(short_help="Score candidates of served queries, each pair once, under a budget.")
@click.argument("source", metavar="DIR|LOG", type=click.Path(path_type=Path))
@click.option("--judge", "spec", required=True, metavar="SPEC", help="Who judges; see above.")
@click.option(
    "--vectors", metavar="NAME", help="Stored vectors of DIR: vectors/NAME.npz.  [default: minilm, or by --embed]"
)
@embedded_by("the texts of DIR first, as `tttembed data` does")
@click.option(
    "--depth",
    "depths",
    default="10",
    show_default=True,
    type=Many(int, "K,..."),
    help="Candidates per query, in stages: 10,30 judges every query to 10 first. 1,2,3 is breadth first.",
)
@click.option(
    "--order",
    type=click.Choice(("drawn", "cover")),
    default="drawn",
    show_default=True,
    help="Queries at random by --seed, or first those of which verdicts say most about what is asked.",
)
@click.option("--budget", default="", metavar="CAPS", help="pairs=N,tokens=N,usd=N; without a part no such cap.")
@click.option("--price", default="", metavar="USD", help="input=N,output=N (per million tokens), request=N (each).")
@click.option("--out", type=click.Path(path_type=Path), help="Where rewards go.  [default: DIR/scores/JUDGE.tsv]")
@click.option("--cache", "cache_path", type=click.Path(path_type=Path), help="Paid scores.  [default: beside --out]")
@counted("--concurrency", 8, "Calls in flight at once.")
@counted("--seed", 1000, "Order of the queries of a task.", least=0)
@click.option("--dry-run", is_flag=True, help="Print the forecast of pairs, tokens and money, and ask nothing.")
@click.option("--no-examination", is_flag=True, help="Ask a judge that does not pass 24 plain questions first.")
@click.option("--batch", is_flag=True, help="Ask by batches, at their price, and wait for the answers; see above.")
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
    batch: bool,
) -> None:
    """Score the candidates of served queries, each pair once, under a budget.

    DIR is a BEIR folder with vectors/NAME.npz, LOG a file of JSON lines: query_id, query, task,
    candidates [{id, text}]. SPEC is yesno:MODEL, cross-encoder:MODEL, rubric:MODEL (a local chat model),
    openai:MODEL (any service that speaks its chat, by ?url=), anthropic:MODEL, gemini:MODEL, a vendor's reranker
    (cohere:MODEL, jina:MODEL, voyage:MODEL, zeroentropy:MODEL), http+SHAPE://HOST or https+SHAPE://HOST (cohere, jina,
    voyage, zeroentropy, vllm, vllm-score, tei, sglang, decision, gemini-decision), python:MODULE:NAME or feedback:FILE
    (CSV, TREC qrels, OpenSearch JSON); options follow as ?name=value&...

    The CSV of feedback has the columns query_id, doc_id, signal and value, and may have position and time. Signals:
    thumb (1 up, -1 down, 0 taken back), click (1 clicked, 0 shown and not clicked, weighed by position), success
    (1 the document served the task, 0 it did not), judgment (a grade, on ?scale=rubric:LOW,HIGH).

    With --batch, SPEC is openai:MODEL, gemini:MODEL or http+vllm-score://HOST?model=NAME. What is left is sent to the
    service's batches, which answer within a day; stop it whenever you like, the next run reads what was sent.

    Rewards are written in [0, 1]. Run it again to continue: no pair is paid for twice.
    """
    from tttembed_rag.evaluate.observed import observe
    from tttembed_rag.judges.specs import FREE, open_judge
    from tttembed_rag.judging.cache import ScoreCache
    from tttembed_rag.judging.files import read_feedback
    from tttembed_rag.judging.plan import Plan
    from tttembed_rag.judging.running import judge_all
    from tttembed_rag.judging.spending import Budget, Price
    from tttembed_rag.judging.walk import forecast

    if source.suffix.lower() in (".csv", ".tsv"):
        raise click.UsageError(f"{source}: expected a folder or a log; votes need no judge: tttembed fit {source}")
    target = out or _default_target(source, spec)
    if target.is_dir():
        raise click.UsageError(f"{target}: expected a file, got a folder")
    caps = Budget.parse(budget)
    feedback = spec.startswith("feedback:")
    if not price and (feedback or spec.partition(":")[0] in FREE):
        caps = replace(caps, usd=None)
    draft = Plan([], depths, caps, Price.parse(price), None if order == "cover" else seed)
    in_log = order == "cover" and not source.is_dir()  # of which the vectors of queries alone are made, below
    vectors = vectors or "minilm" if embed is None or in_log else _embedded(source, embed, vectors)
    served = observe(source, vectors=vectors, depth=max(depths))
    plan = replace(draft, observations=served if order == "drawn" else _covering(source, served, embed, vectors, seed))
    paid = _cache_path(cache_path, target, dry_run=dry_run)
    if batch:
        _by_batches(spec, plan, paid, target, examine=not no_examination, dry_run=dry_run, as_json=as_json)
        return
    if feedback:
        given = read_feedback(spec, plan, **_texts(source, served))
        if dry_run:
            _report(spec, plan, given.progress, as_json=as_json)
        else:
            _write(target, spec, given, plan, as_json=as_json)
        return
    scorer = open_judge(spec)
    with closing(ScoreCache.open(paid)) as cache:
        examine = not no_examination
        ahead = forecast(plan, scorer, cache, examine=examine)
        if dry_run:
            _report(spec, plan, ahead, as_json=as_json)
            return
        started = time.monotonic()
        with working(ahead.pairs, "judge") as bar:

            def watch(now: Progress) -> None:
                rate = (now.pairs - now.cached) / max(1e-9, time.monotonic() - started)
                bar.update(now.pairs - bar.pos, f"{rate:.1f} pairs/s  {_money(now.usd, plan.price)}")

            try:
                verdicts = judge_all(plan, scorer, cache, concurrency=concurrency, watch=watch, examine=examine)
            except KeyboardInterrupt:
                click.echo(f"stopped: the answers to {bar.pos} pairs are kept; run it again to go on", err=True)
                raise click.exceptions.Exit(130) from None
    _write(target, spec, verdicts, plan, as_json=as_json)


def _by_batches(
    spec: str, plan: Plan, paid: Path | None, target: Path, *, examine: bool, dry_run: bool, as_json: bool
) -> None:
    from tttembed_rag.judging.batching import FiledBatches, forecast_by_batches, judge_by_batches, open_batch_service
    from tttembed_rag.judging.cache import ScoreCache

    service = open_batch_service(spec)
    with closing(ScoreCache.open(paid)) as cache, FiledBatches.at(paid, service.judge.fingerprint) as books:
        if dry_run:
            ahead = forecast_by_batches(plan, service, cache, books, examine=examine)
            _report(spec, plan, ahead, as_json=as_json)
            return
        try:
            verdicts = judge_by_batches(
                plan, service, cache, books, examine=examine, watch=partial(click.echo, err=True)
            )
        except KeyboardInterrupt:
            click.echo(f"stopped: {len(books.open())} batches are open; run it again to read them", err=True)
            raise click.exceptions.Exit(130) from None
    _write(target, spec, verdicts, plan, as_json=as_json)


def _covering(
    source: Path, served: Sequence[Observation], embed: str | None, vectors: str, seed: int
) -> list[Observation]:
    """*served* in the order of `tttembed_rag.judging.covering`, by stored vectors or by those of the model *embed*."""
    from tttembed_rag.evaluate.files import load_beir, load_vectors
    from tttembed_rag.judging.covering import in_covering_order

    if source.is_dir():
        queries = load_vectors(source, vectors, load_beir(source, labels=False))[1]
    elif embed is not None:
        cache = source.parent / "scores" / ".known.sqlite"
        with cached_embedder(embed, cache, len(served)) as model:
            queries = model.embed_queries([one.query for one in served])
    else:
        raise click.UsageError("--order cover: expected --embed SPEC with a log, which has no vectors of its queries")
    return in_covering_order(served, queries, key=str(seed).encode())


def _embedded(source: Path, spec: str, name: str | None) -> str:
    """The name of the vectors of a folder, written now."""
    from tttembed_rag.evaluate.files import load_beir

    if not source.is_dir():
        raise click.UsageError(
            f"--embed: expected a folder, got {source}: a log names its candidates, and is judged without vectors "
            f"(`tttembed fit {source} --embed {spec}` asks for them)"
        )
    return embed_folder(source, load_beir(source, labels=False), spec, name)[0].stem


def _texts(source: Path, served: Sequence[Observation]) -> dict[str, Mapping[str, str]]:
    """The texts of queries and documents by their ids: of the whole collection, not of its candidates alone."""
    from tttembed_rag.evaluate.files import load_beir

    if source.is_dir():
        dataset = load_beir(source, labels=False)
        return {"queries": dataset.queries, "documents": dataset.documents}
    documents = {document: text for observation in served for document, text in observation.candidates}
    return {"queries": {observation.query_id: observation.query for observation in served}, "documents": documents}


def _default_target(source: Path, spec: str) -> Path:
    """The default file of rewards: scores/JUDGE.tsv in the folder, or beside the log."""
    name = spec.partition("?")[0].rstrip("/").rpartition("/")[2].rpartition(":")[2]
    if spec.startswith("feedback:"):
        name = name.removesuffix(Path(name).suffix)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", name)
    return (source if source.is_dir() else source.parent) / "scores" / f"{name.strip('-.') or 'judge'}.tsv"


def _cache_path(path: Path | None, target: Path, *, dry_run: bool) -> Path | None:
    """The file of paid scores; None for a dry run where there is none yet."""
    cache = path or target.parent / ".paid-scores.sqlite"
    if dry_run and not cache.exists():
        return None
    cache.parent.mkdir(parents=True, exist_ok=True)
    return cache


def _write(target: Path, spec: str, verdicts: Verdicts, plan: Plan, *, as_json: bool) -> None:
    """Write the scores, and say so; exit code 1 tells scripts that the judge broke down."""
    from tttembed_rag.judging.files import write_scores

    write_scores(target, verdicts)
    _report(spec, plan, verdicts.progress, as_json=as_json, verdicts=verdicts, target=target)
    if verdicts.broken:
        raise click.exceptions.Exit(1)


def _money(usd: float, price: Price, bound: str = "") -> str:
    """What was or will be paid, in words; a judge without a price is one on a machine of yours, or was given none."""
    from tttembed_rag.judging.spending import Price

    return "no price known" if not usd and price == Price() else f"{bound}${usd:.4f}"


def _report(
    spec: str,
    plan: Plan,
    progress: Progress,
    *,
    as_json: bool,
    verdicts: Verdicts | None = None,
    target: Path | None = None,
) -> None:
    """Print one line, or one JSON object, on the result of judging; without *verdicts* on its forecast."""
    usage, of = progress.usage, plan.pairs
    record: dict[str, Any] = {
        "judge": spec,
        "planned": of,
        "pairs": progress.pairs,
        "cached": progress.cached,
        "requests": usage.requests,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "usd": round(progress.usd, 6),
    }
    what, bound = ("forecast", "at most ") if verdicts is None else ("judged", "")
    line = (
        f"{what}: {progress.pairs} of {of} pairs, {progress.cached} known before, {bound}{usage.tokens} tokens, "
        f"{_money(progress.usd, plan.price, bound)}"
    )
    if verdicts is None:
        line += ", with its examination if it has not passed that before" if usage.requests else ""
        line += "; time unknown before the judge is asked: a run shows its rate and the time left"
    else:
        record |= {"unjudged": verdicts.unjudged, "stopped": verdicts.stopped, "out": str(target)}
        line += f"; {verdicts.unjudged} without a score; written to {target} (scale: probability)"
        raised = "raise it and " if verdicts.stopped.startswith("budget:") else ""
        line += f"\nnot judged: {next(iter(verdicts.failed.values()))}" if verdicts.failed else ""
        line += f"\nstopped: {verdicts.stopped}; {raised}run again to continue" if verdicts.stopped else ""
    click.echo(json.dumps(record) if as_json else line)
