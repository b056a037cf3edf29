"""Document vectors behind a search: exact or approximate, never changed by an offset."""

from tttembed_rag.indexes.faiss import FaissIndex

__all__ = ["FaissIndex"]
