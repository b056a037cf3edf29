"""Fits that outgrow one machine: shards of Parquet, held where they are read, under the same solver and gate.

Private: may change without notice.
"""

from tttembed_store.shards.sharded import fit_sharded

__all__ = ["fit_sharded"]
