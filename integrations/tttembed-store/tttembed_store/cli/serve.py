"""`tttembed serve`: the steering proxy."""

from __future__ import annotations

import gc
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tttembed_rag.cli.group import counted, text
from tttembed_rag.cli.options import by_language
from tttembed_rag.serving.languages import language_of
from tttembed_rag.system.extensions import extension
from tttembed_store.extras import require

if TYPE_CHECKING:
    from tttembed_store.proxy import Caller


@click.command(short_help="Stand before an embedding service and steer vectors of queries.")
@click.argument("upstream", metavar="[UPSTREAM]", required=False)
@click.option("--model", metavar="NAME", help="Whose vectors are steered; without UPSTREAM, how --embed is called.")
@click.option("--store", "url", envvar="TTTEMBED_STORE", metavar="URL", help="The store whose live version is served.")
@click.option("--offsets", "path", type=Path, metavar="FILE", help="Or the offsets of a file.")
@text("--embedder", "NAME", "Serve no offsets learned for another fingerprint.")
@click.option("--bridge", type=Path, metavar="FILE", help="Of `tttembed bridge`: all vectors cross into an old index.")
@click.option("--task", metavar="TASK", help="The task of requests that name none.")
@by_language
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="ENV=TENANT[/TASK]",
    help="Requests with the API key in the environment variable ENV are TENANT's. With any, no header names a tenant.",
)
@click.option(
    "--upstream-key", metavar="ENV", help="Send the key in ENV instead of theirs, for callers with a --key only."
)
@click.option("--judge", default="user feedback", metavar="NAME", help="Whose rewards feedback is.")
@click.option(
    "--catalog",
    "catalogs",
    multiple=True,
    metavar="NAME=PATH[,URL]",
    help="Search the tools of PATH at /v1/search/NAME, and keep what was learned in a store of its own at URL.",
)
@click.option("--abstain", is_flag=True, help="Find no tool where none of --catalog fits a request.")
@click.option("--embed", metavar="SPEC", help="What answers in place of UPSTREAM; and of --catalog, `minilm` if none.")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Where to listen.")
@click.option("--port", default=8787, type=click.IntRange(0, 65535), metavar="N", help="0: any.")
@counted("--limit", 16, "Megabytes of a body up to which it is read; a longer one passes as it came.")
def serve(
    upstream: str | None,
    model: str | None,
    url: str | None,
    path: Path | None,
    embedder: str,
    bridge: Path | None,
    task: str | None,
    keys: tuple[str, ...],
    upstream_key: str | None,
    judge: str,
    catalogs: tuple[str, ...],
    embed: str | None,
    host: str,
    port: int,
    limit: int,
    language: bool,
    abstain: bool,
) -> None:
    """Stand before the embedding service at UPSTREAM and steer the vectors of queries, for clients in any language.

    Clients use http://ADDRESS:PORT in place of UPSTREAM. OpenAI's /v1/embeddings and Cohere's /v2/embed are steered
    where a request says that it holds queries: by the header X-TTT-Role: query, by input_type, or by the model
    NAME@query. POST /v1/steer steers vectors that are handed in.

    With --store, POST /v1/feedback keeps what users say of documents. With --catalog, POST /v1/search/NAME finds tools,
    and POST /v1/used keeps which of them worked. GET /v1/openapi.json describes these. Everything else passes as it
    came.

    Without UPSTREAM a model of this machine answers, by OpenAI's shape: `tttembed serve --embed minilm --store URL`.
    """
    uvicorn = require("uvicorn", "serve")
    from tttembed_rag.embedders import Bridge, open_embedder
    from tttembed_store.following import TenantOffsets, follow
    from tttembed_store.proxy import Callers, FeedbackWriter, LocalModel, proxy_app

    if upstream is None and embed is None:
        raise click.UsageError("expected UPSTREAM, an address, or --embed SPEC, a model that answers here")
    if (model := model or (embed if upstream is None else None)) is None:
        raise click.UsageError("--model: expected the name of the model at UPSTREAM, got none")
    if (url is None) == (path is None):
        raise click.UsageError("expected either --store URL or --offsets FILE")
    callers = Callers(dict(_caller(key) for key in keys), task=task)
    own_key = None if upstream_key is None else _secret("--upstream-key", upstream_key)
    if own_key is not None and not keys:
        raise click.UsageError("--upstream-key: expected a --key for each caller who may use it, got none")
    searches = _searches(catalogs, embed or "minilm", url, abstain=abstain)
    service = upstream or LocalModel(open_embedder(embed or ""), model)
    live = follow(url, embedder=embedder) if url is not None else TenantOffsets.of_file(str(path), embedder=embedder)
    app = proxy_app(
        service,
        live,
        model=model,
        callers=callers,
        task=language_of if language else None,
        upstream_key=own_key,
        limit=limit * 1_000_000,
        feedback=None if url is None else FeedbackWriter(url, judge),
        searches=searches,
        bridge=None if bridge is None else Bridge.load(bridge),
    )
    # The upstream's own Server and Date go out; a kept connection outlives the pauses of usual clients; a request that
    # offers another protocol, as all of Java's clients do, is read with its body by h11 alone.
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=30,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    # From here on callers wait.
    listening = socket.create_server((host, port), family=family, backlog=config.backlog, dualstack_ipv6=both)
    shown = f"[{host}]" if ":" in host else host
    # What was imported stays: later collections pass it over, which would make a caller wait for tens of milliseconds.
    gc.collect()
    gc.freeze()
    click.echo(f"http://{shown}:{listening.getsockname()[1]} steers {model} at {upstream or 'this process'}; {live!r}")
    uvicorn.Server(config).run(sockets=[listening])


def _searches(catalogs: tuple[str, ...], embed: str, url: str | None, *, abstain: bool) -> dict[str, Any]:
    """The searches of NAME=PATH[,URL], by name."""
    from tttembed_store.sql import checked_url

    def file_or_server(store: str) -> str:
        place = checked_url(store)
        return str(Path(place.database or "").resolve() if place.get_backend_name() == "sqlite" else place)

    places: dict[str, tuple[Path, str | None]] = {}
    used = {file_or_server(url)} if url else set()
    for catalog in catalogs:
        name, _, place = catalog.partition("=")
        file, _, store = place.partition(",")
        if not (name and file) or name in places:
            raise click.UsageError(f"--catalog: expected NAME=PATH[,URL] with different names, got {catalog!r}")
        if store and file_or_server(store) in used:
            raise click.UsageError(f"--catalog: expected a store for {name} alone, got one that is used already")
        places[name] = Path(file), store or None
        used |= {file_or_server(store)} if store else set()
    if not places:
        return {}
    search = extension("tttembed.tools", "search", brings="--catalog is an option", of="tttembed-tools")
    return {name: search(file, embed, store=store, abstain=abstain) for name, (file, store) in places.items()}


def _caller(key: str) -> tuple[str, Caller]:
    """The API key and its caller, of ENV=TENANT[/TASK]."""
    from tttembed_store.proxy import Caller

    name, equals, owner = key.partition("=")
    if not (name and equals):
        raise click.UsageError(f"--key: expected ENV=TENANT[/TASK], got {key!r}")
    tenant, _, task = owner.partition("/")
    return _secret("--key", name), Caller(tenant, task or None)


def _secret(option: str, name: str) -> str:
    """The environment variable *name*; a key itself would be seen by everybody who lists processes."""
    if not (value := os.environ.get(name, "")):
        raise click.UsageError(f"{option}: expected the name of an environment variable that holds a key, got {name!r}")
    return value
