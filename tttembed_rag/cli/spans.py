"""`tttembed store import`: served queries from a log or from spans, votes, and what people said of answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tttembed_rag.cli.embedding import embedded_by, fill
from tttembed_rag.cli.group import counted, operators
from tttembed_rag.cli.options import PathOrURL, as_objects, in_store, opened
from tttembed_rag.cli.rows import is_log, read_votes
from tttembed_rag.rewards import DEFAULT_TASK
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.system.extensions import extension

if TYPE_CHECKING:
    from tttembed_rag.capture.spans import Reader
    from tttembed_rag.rewards.rows import TextReward
    from tttembed_rag.stores import Served, Store

# Queries that are imported in one transaction: others write in between.
_AT_ONCE = 500
# Who gave the rewards of a file of votes: of all such files, so that a later one adds to those before.
_VOTERS = "votes"
# The services whose projects are read, by the scheme of their addresses; in all but the first, scores are of answers.
_PROJECTS = {"phoenix": "Phoenix", "langfuse": "Langfuse", "langsmith": "LangSmith"}


@operators.command("import")
@click.argument("log", metavar="LOG", type=PathOrURL())
@in_store
@click.option("--tenant", metavar="NAME", help='Whose; "" is the shared tenant, the one of a store without others.')
@embedded_by("the texts of the store that have no vector")
@click.option("--embedder", default="", metavar="NAME", help="What vectors are stored under.  [default: by --embed]")
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
    from tttembed_rag.stores.rows import in_parts

    of_spans = spans or isinstance(log, str) or log.suffix == ".parquet"
    if scores_of is not None and not of_spans:
        raise click.UsageError(f"--scores-of: expected spans, got {log}")
    of_log = not of_spans and is_log(Path(log))
    service = _service(log)
    of_answers = service not in ("", "phoenix") and scores_of is not None
    if (scores_of is None) != (scale is None) and (of_spans or of_log) and not of_answers:
        raise click.UsageError("expected --scores-of and --scale together: scores mean nothing without a scale")
    votes = [] if of_spans or of_log else read_votes(Path(log), scale or "probability", DEFAULT_TASK)
    left_out, written, hidden = 0, 0, not sys.stderr.isatty()
    owner, judge = tenant or "", _VOTERS if votes or of_answers else scores_of or ""
    served = _served_log(Path(log), owner) if of_log else []
    with opened(url, create=True) as store:
        if tenant is None and store.has_tenants():
            known = len(store.tenants()) - 1
            raise click.UsageError(
                f'--tenant: expected whose queries these are, as the store has tenants ({known}); "" is the shared one'
            )
        if of_spans:
            from tttembed_rag.capture.spans import Reader

            reader = Reader(None if of_answers else scores_of, None, cut_at)
            on = None if scale is None and not of_answers else Scale.parse(scale or "probability")
            served = _served_spans(log, reader, limit, store, owner, on, scores_of if of_answers else None)
            left_out = reader.left_out
        elif votes:
            served = _served_votes(votes, store.text_id, owner)
        with click.progressbar(length=len(served), label="import", file=sys.stderr, hidden=hidden) as bar:
            for part in in_parts(served, _AT_ONCE):
                written += store.observe(part, judge=judge)
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
        click.echo(json.dumps(facts | ({"left_out": left_out} if of_spans else {})))
        return
    if votes:
        written = len({(vote.task, vote.query) for vote in votes})
    what = f"{written} queries" + (f" with {len(votes)} votes" if votes else "")
    click.echo(f"{what} of {log}" + (f"; {left_out} documents without a whole text" if left_out else ""))
    if lacking.texts:
        click.echo(f"{lacking}: nothing is learned from those until --embed SPEC gives them some", err=True)


def _served_log(log: Path, tenant: str) -> list[Served]:
    from tttembed_rag.rewards.observations import read_log
    from tttembed_rag.stores import Candidate, Served

    return [
        Served(
            one.query_id,
            None,
            [Candidate(name, text=text) for name, text in one.candidates],
            one.query,
            one.task,
            tenant,
        )
        for one in read_log(log)
    ]


def _served_votes(votes: Sequence[TextReward], text_id: Callable[[str], str], tenant: str) -> list[Served]:
    """The queries that were voted on, once for each source, with its rewards of their documents."""
    from tttembed_rag.stores import Candidate, Served

    given: dict[tuple[str, str, str], list[Candidate]] = {}
    for query, document, reward, task, source in votes:
        shown = given.setdefault((query, task, source), [])
        shown.append(Candidate(text_id(document), text=document, reward=reward))
    return [
        Served(text_id(query), None, shown, query, task, tenant, source=source)
        for (query, task, source), shown in given.items()
    ]


def _served_spans(
    log: Path | str, reader: Reader, limit: int, store: Store, tenant: str, scale: Scale | None, thumbs: str | None
) -> list[Served]:
    """What spans show, with the scores of rerankers, or with *thumbs* of that name, on a *scale*."""
    from tttembed_rag.capture.spans import read_spans, retrievals_of, served_of, thumbed

    if isinstance(log, str):
        service = _service(log)
        brings = f"projects of {_PROJECTS[service]} are read by a part"
        spans: Any = extension("tttembed.spans", service, brings=brings)(log, limit=limit)
    else:
        spans = read_spans(log)
    found = retrievals_of(spans, reader)
    if thumbs is not None and scale is not None:
        said = extension("tttembed.thumbs", service, brings=brings)(log, spans, name=thumbs)
        found, scale = thumbed(found, said, scale), Scale()
    return [served_of(one, store.text_id, tenant=tenant, scale=scale) for one in found]


def _service(log: Path | str) -> str:
    """The service that *log* is a project of; empty for a file."""
    kind = log.partition("+")[0] if isinstance(log, str) else ""
    return kind if kind in _PROJECTS or not isinstance(log, str) else "phoenix"
