"""`tttembed store import`: served queries from a log or from spans, votes, and what people said of answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tttembed_rag.cli.embedding import embedded_by
from tttembed_rag.cli.group import counted, text
from tttembed_rag.cli.options import path_or_url
from tttembed_rag.cli.rows import is_log, read_rewarded
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.rewards.rows import read_log
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.system.extensions import extension
from tttembed_rag.system.progress import working
from tttembed_store.cli.embedding import fill
from tttembed_store.cli.group import as_objects, in_store, opened, operators

if TYPE_CHECKING:
    from tttembed_rag.rewards.observations import Served

# Queries that are imported in one transaction: others write in between.
_AT_ONCE = 500
# Who gave the rewards of a file of votes: of all such files, so that a later one adds to those before.
_VOTERS = "votes"
# The services whose projects are read, by the scheme of their addresses; in all but the first, scores are of answers.
_PROJECTS = {"phoenix": "Phoenix", "langfuse": "Langfuse", "langsmith": "LangSmith"}
# What is left out of spans, as the reader counts it.
_LEFT_OUT = {
    "left_out": "documents without a whole text",
    "without_query": "retrievals whose query was not understood, redacted or cut",
}


@operators.command("import")
@click.argument("log", metavar="LOG", type=path_or_url)
@in_store
@click.option("--tenant", metavar="NAME", help='Whose; "" is the shared tenant, the one of a store without others.')
@embedded_by("the texts of the store that have no vector")
@text("--embedder", "NAME", "What vectors are stored under.  [default: by --embed]")
@click.option("--spans", is_flag=True, help="LOG holds spans of OpenTelemetry; so does a .parquet file.")
@click.option("--cut-at", type=click.IntRange(min=1), metavar="N", help="Texts of spans from N characters on are cut.")
@click.option("--scores-of", metavar="MODEL", help="Keep scores of this reranker, or of this name.")
@click.option("--scale", metavar="SCALE", help="Of scores and rewards: probability, logit or rubric:LOW,HIGH.")
@counted("--limit", 10_000, "Spans read of a project at most, the newest.")
@as_objects
def import_(
    log: Path | str,
    url: str,
    tenant: str | None,
    embed: str | None,
    embedder: str,
    cut_at: int | None,
    scores_of: str | None,
    scale: str | None,
    limit: int,
    *,
    spans: bool,
    as_json: bool,
) -> None:
    """Put the served queries of LOG into a store, where they wait for a judge; or votes, which are rewards.

    LOG is a file of JSON lines as `judge` reads them; a file of votes as `fit` takes it, CSV or JSON lines; with
    --spans a file of spans; or a project, phoenix+http://HOST:6006/PROJECT, langfuse+https://HOST or
    langsmith+https://HOST/PROJECT. Texts of spans that were redacted or cut are left out.

    In Langfuse and LangSmith, --scores-of names scores of answers, such as thumbs: they become weak votes on all
    documents that were retrieved for the answer. Numbers are on --scale, which is probability where nothing is said.

    All of LOG is checked first; if it ends on the way, run it again: what is there is merged. Nothing is learned from
    texts without vectors: --embed makes them here, or later in `tttembed worker`. Spans that say no time count as the
    oldest: what was forgotten before stays so.
    """
    from tttembed_store.sql.rows import in_parts

    of_spans = spans or isinstance(log, str) or log.suffix.lower() == ".parquet"
    if scores_of is not None and not of_spans:
        raise click.UsageError(f"--scores-of: expected spans, got {log}")
    of_log = not of_spans and is_log(Path(log))
    of_answers = scores_of is not None and _service(log) not in ("", "phoenix")
    if (scores_of is None) != (scale is None) and (of_spans or of_log) and not of_answers:
        raise click.UsageError("expected --scores-of and --scale together: scores mean nothing without a scale")
    votes = [] if of_spans or of_log else read_rewarded(Path(log), Scale.parse(scale) if scale else None, DEFAULT_TASK)
    served = read_log(Path(log)) if of_log else votes
    left_out, written = dict[str, int](), 0
    owner, judge = tenant or "", _VOTERS if votes or of_answers else scores_of or ""
    with opened(url, create=True) as store:
        if tenant is None and store.has_tenants():
            known = len(store.tenants()) - 1
            raise click.UsageError(
                f'--tenant: expected whose queries these are, as the store has tenants ({known}); "" is the shared one'
            )
        if of_spans:
            declared = None if scale is None else Scale.parse(scale)
            served, left_out = _served_spans(log, scores_of, declared, cut_at, limit, thumbs=of_answers)
        with working(len(served), "import") as bar:
            for part in in_parts(served, _AT_ONCE):
                written += store.observe([replace(served, tenant=owner) for served in part], judge=judge)
                bar.update(len(part))
        if scores_of is not None and not of_answers:
            store.trust(scores_of, True)
        lacking = store.vectors.lacking()
        if embed is not None:
            named, lacking = fill(store, embed, embedder, only_without_any=True)
            if (other := store.vectors.lacking(named)).texts > lacking.texts:
                click.echo(f"{other} of {named}: `tttembed store reembed --embed {embed}` gives them some", err=True)
    if as_json:
        facts = {"queries": written, "without_vectors": lacking.texts}
        click.echo(json.dumps(facts | left_out))
        return
    if votes:
        written = len({(vote.task, vote.query) for vote in votes})
    what = f"{written} queries" + (f" with {sum(len(vote.candidates) for vote in votes)} votes" if votes else "")
    rest = [f"; {count} {_LEFT_OUT[kind]}" for kind, count in left_out.items() if count]
    click.echo("".join([f"{what} of {log}", *rest]))
    if lacking.texts:
        click.echo(f"{lacking}: nothing is learned from those until --embed SPEC gives them some", err=True)


def _served_spans(
    log: Path | str,
    scores_of: str | None,
    scale: Scale | None,
    cut_at: int | None,
    limit: int,
    *,
    thumbs: bool,
) -> tuple[list[Served], dict[str, int]]:
    """The queries that spans served, and how much was left out, by its kind.

    Rewards are the scores of the reranker *scores_of*, or the *thumbs* on answers of that name, on a *scale*.
    """
    from tttembed_store.spans import Reader, read_spans, served_in, thumbed

    service = _service(log)
    brings = f"projects of {_PROJECTS.get(service)} are read by a part"
    reader = Reader(None if thumbs else scores_of, None, cut_at)
    if isinstance(log, str):
        spans: Any = extension("tttembed.spans", service, brings=brings)(log, limit=limit)
    else:
        spans = read_spans(log)
    queries = served_in(spans, reader, None if thumbs else scale)
    served = [query for _, query in queries]
    if thumbs:
        of_answers = extension("tttembed.thumbs", service, brings=brings)(log, spans, name=scores_of)
        served = thumbed(queries, of_answers, scale or Scale())
    with_texts = ([candidate for candidate in query.candidates if candidate.text] for query in served)
    whole = [replace(query, candidates=candidates) for query, candidates in zip(served, with_texts, strict=True)]
    return whole, {kind: reader.counts[kind] for kind in _LEFT_OUT}


def _service(log: Path | str) -> str:
    """The service that *log* is a project of; empty for a file."""
    if isinstance(log, Path):
        return ""
    kind = log.partition("+")[0]
    return kind if kind in _PROJECTS else "phoenix"
