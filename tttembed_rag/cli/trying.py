"""`tttembed try`: judge, learn and measure, in one sentence."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from tttembed_rag.cli.embedding import embedded_by
from tttembed_rag.cli.group import main, say, target, text
from tttembed_rag.cli.judge import default_target, judge
from tttembed_rag.cli.learning import read_rewards
from tttembed_rag.cli.measuring import evaluate
from tttembed_rag.cli.options import on_scale, path_alone, whether_trusted
from tttembed_rag.cli.rows import is_log
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.rewards.scales import Scale


@main.command("try", short_help="Say in one sentence whether a reranker helps your search.")
@click.argument("source", metavar="LOG|CSV|DIR", type=path_alone)
@click.option("--judge", "spec", metavar="SPEC", help="Your reranker, as in `tttembed judge`; votes need none.")
@embedded_by("the texts of LOG, CSV or DIR")
@click.option("--rewards", metavar="NAME", help="Verdicts that are there: scores/NAME.tsv, instead of --judge.")
@on_scale
@text("--budget", "CAPS", "pairs=N,tokens=N,usd=N; without a part no such cap.")
@text("--price", "USD", "input=N,output=N (per million tokens), request=N (each).")
@whether_trusted
@click.option("--html", "page", metavar="PAGE", type=target, help="The page of `tttembed eval` too.")
@click.option("--json", "as_json", is_flag=True, help="The conclusion as one JSON object.")
def attempt(
    source: Path,
    spec: str | None,
    embed: str | None,
    rewards: str | None,
    page: Path | None,
    *,
    scale: Scale | None,
    trusted: bool | None,
    as_json: bool,
    **spending: str,
) -> None:
    """Judge what waits, learn from all of it, and say in one sentence whether it would be served, and why.

    LOG is a log of served queries, and DIR a BEIR folder, as `tttembed judge` takes them; CSV is feedback with its own
    verdicts, as `tttembed fit` takes it. --judge is the reranker whose order you serve, so you vouch for it, unless
    --untrusted says otherwise. It is what `Learned` prints for the same verdicts. Run it again to continue: no pair is
    paid for twice.
    """
    from tttembed_rag.capture.conclusion import Conclusion
    from tttembed_rag.embedders.specs import name_of
    from tttembed_rag.gate.fit import fit

    folder, invoke = source.is_dir(), click.get_current_context().invoke
    if spec is not None:
        if not (folder or is_log(source)):
            raise click.UsageError(f"--judge: expected a log or a folder, got {source}, which has verdicts of its own")
        of_folder = {"embed": embed} if folder else {}
        with redirect_stdout(io.StringIO()) as judged:
            invoke(judge, source=source, spec=spec, no_examination=True, **of_folder, **spending)
        click.echo(judged.getvalue().strip(), err=True)
        rewards, trusted = default_target(source, spec).stem, trusted if trusted is not None else True
    read: dict[str, Any] = {"embed": None if folder else embed, "scale": scale, "rewards": rewards, "trusted": trusted}
    read["vectors"] = "minilm" if embed is None else name_of(embed)
    known = read_rewards(source, task=DEFAULT_TASK, language=False, judge=None, tenant="", last=None, depth=10, **read)
    conclusion = Conclusion.of(fit(replace(known.rewards, declared_by="your reranker")))
    if page is not None:
        with redirect_stdout(io.StringIO()):
            invoke(evaluate, folders=(source,), page=page, **read | {"rewards": rewards or "qrels"})
    if as_json:
        click.echo(json.dumps(asdict(conclusion)))
    else:
        say(str(conclusion))
