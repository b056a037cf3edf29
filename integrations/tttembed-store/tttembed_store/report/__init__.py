"""What a store has learned and serves, as one value and one HTML page. Private: may change without notice."""

from tttembed_store.report.gathering import StoreReport, gather
from tttembed_store.report.page import page_of

__all__ = ["StoreReport", "gather", "page_of"]
