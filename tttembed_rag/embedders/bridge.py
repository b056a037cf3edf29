"""A bridge into an index that outlives its model: vectors of another model, mapped to where the old one would put them.

It is learned from documents that both models embedded: the old vectors are in the index, the new ones are made of the
texts, and the old model is not asked.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.clients.fingerprints import fingerprint_of
from tttembed_rag.errors import DataError, InputError, VectorError
from tttembed_rag.system.files import write_whole
from tttembed_rag.vectors.checks import FloatArray, as_floats, checked_norms, norms, unit
from tttembed_rag.vectors.probe import Probe

_FORMAT = "tttembed-bridge-1"
# Fewer pairs say nothing of a map.
LEAST_PAIRS = 20
# Wide directions of the new vectors count less: each is divided by its variance to this power, where variances are
# raised by this share of the mean one. These and the next two were chosen on six collections (benchmarks/bridge.py).
_FLATTENING, _FLOOR = 0.1, 0.1
# How much of what all documents share a query shares too; how far logged queries move the middle of queries to theirs.
_SHARED, _MOVED = 0.5, 0.25
# Held-out rows that are searched for, at most, and the length of a list.
_HELD, _LISTED = 500, 10


class Middles(NamedTuple):
    """Where one kind of text lies: the middle (e,) of its new unit vectors, and that (d,) of its old ones."""

    new: FloatArray
    old: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Bridge:
    """A map from vectors (e,) of a new model to unit vectors (d,) in the space of an old index.

    A vector is taken from the new middle of its kind, *queries* or *documents*, turned by the *weights* (e, d), and put
    at one *distance* from that kind's old middle: the mean one of documents.

    Attributes:
        agreement: The share of the old model's first ten documents that held-out rows find through the bridge: logged
            queries where there are any, else documents, which are easier to find for than what users ask.
        pairs: Documents that it was learned from.
        logged: Logged queries that it was learned from.
        probe: The `Probe` of the new model as text, by which another one is refused; empty where there was none.
        embedder: The fingerprint of the old model.
        proof: What held-out verdicts say of it; empty where nothing is proven.
    """

    weights: FloatArray
    queries: Middles
    documents: Middles
    distance: float
    agreement: float
    pairs: int
    logged: int = 0
    probe: str = ""
    embedder: str = ""
    proof: str = ""

    @classmethod
    def learn(
        cls,
        new: ArrayLike,
        old: ArrayLike,
        queries: tuple[ArrayLike, ArrayLike] | None = None,
        *,
        probe: str = "",
        embedder: str = "",
    ) -> Bridge:
        """The bridge of documents, in closed form: a rotation between their vectors, each taken from the middle.

        Args:
            new: (n, e) vectors of documents by the new model; 5,000 to 20,000 that cover the index are enough.
            old: (n, d) vectors of the same documents in the index.
            queries: Of logged queries, the vectors (m, e) by the new model and (m, d) by the old one.
            probe: `Probe.to_json` of the new model.
            embedder: The fingerprint of the old model.

        Raises:
            VectorError: A vector is NaN, infinite or zero, or the rows are no pairs.
            InputError: There are fewer than 20 pairs.
        """
        new_rows, old_rows = _paired("new", new, "old", old)
        if (count := len(new_rows)) < LEAST_PAIRS:
            raise InputError(f"new: expected at least {LEAST_PAIRS} documents in both spaces, got {count}")
        documents = Middles(new_rows.mean(axis=0), old_rows.mean(axis=0))
        rows, others = _at_unit(new_rows - documents.new), old_rows - documents.old
        held = np.random.default_rng(0).permutation(count)[: min(_HELD, count // 5)]
        kept = np.delete(np.arange(count), held)
        spread, shared = rows[kept].T @ rows[kept], rows[kept].T @ others[kept]
        distance = float(norms(others).mean())
        part = _crossed(new_rows[held], _turn(spread, shared), documents, distance)
        agreement = _agreement(part, old_rows[held], old_rows[kept])
        weights = _turn(spread + rows[held].T @ rows[held], shared + rows[held].T @ others[held])
        middles = Middles(documents.new, _SHARED * documents.old)
        bridge = cls(weights, middles, documents, distance, agreement, count, probe=probe, embedder=embedder)
        if queries is None or not len(np.asarray(queries[0])):
            return bridge
        logged_new, logged_old = _paired("queries, new", queries[0], "queries, old", queries[1])
        learned, held_out = (slice(0, None, 2), slice(1, 2 * _HELD, 2)) if len(logged_new) > 1 else (slice(1), slice(1))
        half = bridge.towards(logged_new[learned], logged_old[learned])
        agreement = _agreement(half.apply(logged_new[held_out]), logged_old[held_out], old_rows)
        return replace(bridge.towards(logged_new, logged_old), agreement=agreement)

    def towards(self, new: ArrayLike, old: ArrayLike) -> Bridge:
        """The same bridge, the middles of queries a part of the way to those of logged ones, by both models' vectors.

        Not all of it: what all queries share orders no documents, and leaves less to what tells them apart.
        """
        logged = _paired("queries, new", new, "queries, old", old)
        starts = self.documents.new, _SHARED * self.documents.old
        moved = [here + _MOVED * (rows.mean(axis=0) - here) for here, rows in zip(starts, logged, strict=True)]
        return replace(self, queries=Middles(*moved), logged=len(logged[0]))

    def apply(self, X: ArrayLike, *, documents: bool = False) -> FloatArray:
        """Unit vectors (m, d) or (d,) in the old space for vectors X (m, e) or (e,) of queries, or of *documents*.

        Raises:
            VectorError: A vector is NaN, infinite, zero or of another width.
        """
        vectors, width = as_floats("X", X), len(self.weights)
        if vectors.ndim not in (1, 2) or vectors.shape[-1] != width:
            raise VectorError(f"X: expected shape (m, {width}) or ({width},), got {vectors.shape}")
        units = vectors / checked_norms("X", vectors)[..., None]
        middles = self.documents if documents else self.queries
        return _crossed(units, self.weights, middles, self.distance).astype(vectors.dtype, copy=False)

    def name_of(self, model: str) -> str:
        """The fingerprint of vectors across this bridge, from that of the new *model*."""
        parts = (self.weights, *self.queries, *self.documents)
        numbers = b"".join(part.astype(np.float32).tobytes() for part in parts)
        return fingerprint_of("bridged", model, bridge=hashlib.sha256(numbers).hexdigest())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, whole or not at all, without any text of a document or query."""
        from safetensors.numpy import save

        about = asdict(self)
        tensors = {"weights": about.pop("weights")}
        for kind in ("queries", "documents"):
            tensors |= {f"{kind}.{model}": middle for model, middle in about.pop(kind)._asdict().items()}
        tensors = {name: np.ascontiguousarray(tensor, dtype=np.float32) for name, tensor in tensors.items()}
        write_whole(path, save(tensors, metadata={"format": _FORMAT, "bridge": json.dumps(about)}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Bridge:
        """Read a file that `save` wrote; nothing in it is executed.

        Raises:
            DataError: The file is no bridge, is damaged, or has another format.
        """
        from safetensors import SafetensorError, safe_open

        if not Path(path).is_file():
            raise DataError(f"{path}: expected a bridge, found no file")
        try:
            with safe_open(path, "np") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            if header.get("format") != _FORMAT:
                raise DataError(f"{path}: expected a file of format {_FORMAT}, got {header.get('format')!r}")
            kinds = [Middles(tensors[f"{kind}.new"], tensors[f"{kind}.old"]) for kind in ("queries", "documents")]
            bridge = cls(tensors["weights"], kinds[0], kinds[1], **json.loads(header["bridge"]))
            shapes = {bridge.weights.shape, *((len(middles.new), len(middles.old)) for middles in kinds)}
            if len(shapes) > 1 or not all(np.isfinite(part).all() for part in (bridge.distance, *tensors.values())):
                raise ValueError(f"finite numbers of one shape, got {shapes}")
        except DataError:
            raise
        except (SafetensorError, LookupError, TypeError, ValueError) as exc:
            raise DataError(f"{path}: expected a bridge, got a damaged or foreign file ({exc})") from exc
        return bridge


def bridge_for(embed_query: Callable[[str], ArrayLike], bridge: Bridge | str | os.PathLike[str]) -> Bridge:
    """A *bridge*, or that in a file, for the model whose vector (e,) of a text *embed_query* gives.

    Raises:
        InputError: It was learned for another model, as its probe says.
        DataError: The file is no bridge.
    """
    bridge = bridge if isinstance(bridge, Bridge) else Bridge.load(bridge)
    if bridge.probe and (why := Probe.from_json(bridge.probe).difference(Probe.of(embed_query))):
        raise InputError(f"bridge: {why}: it was learned for another embedding model")
    return bridge


def _paired(name: str, new: ArrayLike, other: str, old: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Vectors of the same texts in both spaces, at unit length, as float32."""
    pair = as_floats(name, new), as_floats(other, old)
    if {rows.ndim for rows in pair} != {2} or len(pair[0]) != len(pair[1]):
        raise VectorError(f"{name}: expected a row for each of {other}, got {pair[0].shape} and {pair[1].shape}")
    checked = zip((name, other), pair, strict=True)
    new_rows, old_rows = ((rows / checked_norms(key, rows)[:, None]).astype(np.float32) for key, rows in checked)
    return new_rows, old_rows


def _turn(spread: FloatArray, shared: FloatArray) -> FloatArray:
    """The weights (e, d): orthogonal Procrustes of flattened new rows, from their products (e, e), (e, d).

    All rows are centred, the new ones at unit length.
    """
    variances, axes = np.linalg.eigh(spread)
    variances = np.maximum(variances / max(float(variances.mean()), 1e-30), 0.0) + _FLOOR
    flat = (axes * variances**-_FLATTENING) @ axes.T
    left, _, right = np.linalg.svd(flat @ shared, full_matrices=False)
    return np.asarray(flat @ left @ right)


def _crossed(units: FloatArray, weights: FloatArray, middles: Middles, distance: float) -> FloatArray:
    """Unit vectors in the old space for unit vectors of the new model."""
    return unit(distance * _at_unit((units - middles.new) @ weights) + middles.old)


def _at_unit(vectors: FloatArray) -> FloatArray:
    """Vectors at unit length; zeros stay zeros."""
    return vectors / np.maximum(norms(vectors), 1e-30)[..., None]


def _agreement(crossed: FloatArray, old: ArrayLike, documents: FloatArray) -> float:
    """The share of the first ten *documents* by *old* vectors that *crossed* ones of the same rows find."""
    count = min(_LISTED, len(documents))
    by_crossed, by_old = (
        np.argpartition(-(np.asarray(rows) @ documents.T), count - 1, axis=1)[:, :count] for rows in (crossed, old)
    )
    return float((by_crossed[:, :, None] == by_old[:, None, :]).any(axis=2).mean())
