"""`tttembed bridge`: queries of a new model in the index of an old one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from tttembed_rag.cli.embedding import cached_embedder
from tttembed_rag.cli.group import counted, main, target
from tttembed_rag.cli.learning import from_source, read_rewards, whose_rewards
from tttembed_rag.cli.rows import CACHE, collections_of
from tttembed_rag.rewards.scales import Scale

if TYPE_CHECKING:
    from tttembed_rag.embedders.bridge import Bridge
    from tttembed_rag.evaluate.collection import Collection
    from tttembed_rag.offsets.offsets import Offsets
    from tttembed_rag.vectors.checks import FloatArray, IntArray


@main.command("bridge")
@from_source
@click.option("--old", metavar="NAME|SPEC", help="Stored vectors of DIR, minilm by default; the old model for a FILE.")
@click.option("--embed", required=True, metavar="SPEC", help="The new model, as in `tttembed data`; or vectors of DIR.")
@whose_rewards
@click.option("--out", required=True, metavar="FILE", type=target, help="Where the bridge goes.")
@click.option("--offsets", "above", metavar="FILE", type=target, help="Where offsets go that are learned above it.")
@click.option("--keep", default=1.0, metavar="SHARE", help="What must be kept of the old model's nDCG@10.")
@click.option("--unproven", is_flag=True, help="Write the bridge whatever verdicts say, or without any.")
@counted("--pairs", 20_000, "Documents to learn from, at most.")
def learn_bridge(
    source: Path | str,
    old: str | None,
    embed: str,
    out: Path,
    above: Path | None,
    keep: float,
    pairs: int,
    *,
    unproven: bool,
    **whose: Any,
) -> None:
    """Search an old model's index with a new model: learn a bridge.

    The old model need not answer any more. DIR is a BEIR folder with its vectors of documents and logged queries; FILE
    and URL are rewards, as `tttembed fit` takes them. The texts of a FILE are embedded by both models.

    Verdicts decide, on queries that nothing was learned from: the bridge, or with --offsets both, must keep the SHARE
    of what the old model finds by the lower end of a 90 % interval. Else nothing is written, unless you say --unproven.

    The bridge is part of a model wherever one is named: SPEC?bridge=FILE. Of DIR, the queries across it are vectors
    that `tttembed fit` and `eval` take, by the name of FILE.
    """
    from tttembed_rag.embedders.bridge import Bridge
    from tttembed_rag.evaluate.bridging import Kept, asked_by, kept_by
    from tttembed_rag.evaluate.files import write_vectors

    collections = _opened(source, old, whose)
    sample = np.random.default_rng(0).permutation(len(collections[0].doc_ids))[:pairs]
    new, queries, probe, model = _embedded(source, embed, out, collections, sample)
    logged = np.concatenate(queries), np.concatenate([each.query_vectors for each in collections])
    documents = collections[0].doc_vectors[sample]
    bridge = Bridge.learn(new, documents, logged, probe=probe, embedder=collections[0].embedder)
    quality = f"held-out queries find {bridge.agreement:.0%} of the old model's first ten"
    click.echo(f"{bridge.pairs} documents, {bridge.logged} logged queries: {quality}")
    depth, trusted = whose["depth"], whose["trusted"]
    judged = [each.judged(depth) for each in collections]
    kept = Kept.joined(
        kept_by(bridge, each, of_each, rows, depth=depth, trusted=trusted)
        for each, of_each, rows in zip(collections, queries, judged, strict=True)
        if len(rows)
    )
    proof = ""
    if kept is not None:
        click.echo("\n".join(kept.lines))
        served = kept.bridge if above is None else kept.offsets
        proof = kept.proof(served, keep)
    if not (proof or unproven):
        lacking = "no verdicts" if kept is None else f"no proof that it keeps {keep:.0%}"
        raise click.UsageError(f"{out}: not written, for it has {lacking} (see --rewards, --keep and --unproven)")
    replace(bridge, proof=proof).save(out)
    click.echo(f"{out}: {proof or 'unproven'}")
    crossed = [asked_by(each, bridge.apply(of_each)) for each, of_each in zip(collections, queries, strict=True)]
    name = bridge.name_of(model)
    if isinstance(source, Path) and source.is_dir():
        first = crossed[0]
        write_vectors(source, out.stem, first.dataset, first.doc_vectors, first.query_vectors, fingerprint=name)
    if above is not None:
        offsets = _learned(bridge, name, crossed, judged, depth=depth, trusted=trusted)
        offsets.save(above)
        click.echo(f"{above}: {offsets!r}")


def _opened(source: Path | str, old: str | None, whose: dict[str, Any]) -> list[Collection]:
    """The collections of *source* under the old model, a task each."""
    from tttembed_rag.evaluate.collection import Collection
    from tttembed_rag.evaluate.datasets import QRELS
    from tttembed_rag.evaluate.files import embedder_of, load_beir, load_scores, load_vectors

    if isinstance(source, str) or not source.is_dir():
        if isinstance(source, Path) and old is None:
            raise click.UsageError(
                f"--old: expected the model that your index was built with, for the texts of {source}"
            )
        return collections_of(read_rewards(source, embed=old, vectors="", **whose).rewards)
    vectors, rewards = old or "minilm", whose["rewards"]
    dataset = load_beir(source, labels=rewards is not None)
    scores = {} if rewards is None else None if rewards == QRELS else load_scores(source, rewards)
    return [
        Collection.of(
            dataset,
            *load_vectors(source, vectors, dataset),
            embedder=embedder_of(source, vectors),
            judge=rewards or "nobody",
            scores=scores,
            scale=whose["scale"] or Scale(),
        )
    ]


def _embedded(
    source: Path | str, embed: str, out: Path, collections: Sequence[Collection], sample: IntArray
) -> tuple[FloatArray, list[FloatArray], str, str]:
    """The new model's vectors of a *sample* of the documents and of all queries, its probe, and its fingerprint."""
    from tttembed_rag.evaluate.files import load_vectors
    from tttembed_rag.vectors.probe import probe_of

    dataset = collections[0].dataset
    if isinstance(source, Path) and (source / "vectors" / f"{embed}.npz").is_file():
        documents, queries = load_vectors(source, embed, dataset)
        return documents[sample], [queries], "", embed
    texts = np.array(list(dataset.documents.values()), dtype=object)[sample].tolist()
    logged = [list(each.dataset.queries.values()) for each in collections]
    with cached_embedder(embed, out.absolute().parent / CACHE, len(texts) + sum(map(len, logged))) as model:
        vectors = model.embed_documents(texts), [model.embed_queries(of_each) for of_each in logged]
        return *vectors, probe_of(lambda text: model.embed_queries([text])[0]), model.fingerprint


def _learned(
    bridge: Bridge, name: str, crossed: Sequence[Collection], judged: Sequence[IntArray], **options: Any
) -> Offsets:
    """Offsets above a *bridge*, from all verdicts; they know the model across it again."""
    from tttembed_rag.evaluate.collection import pooled_rewards
    from tttembed_rag.gate.fit import fit
    from tttembed_rag.vectors.probe import Probe

    rewards = pooled_rewards(crossed, judged, options["depth"])
    if bridge.probe:
        probe = Probe("", bridge.apply(Probe.from_json(bridge.probe).queries)).to_json()
        rewards = replace(rewards, probe=probe)
    return fit(replace(rewards, embedder=name), trusted=options["trusted"])
