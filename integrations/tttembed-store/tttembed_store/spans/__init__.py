"""What was retrieved and reranked, from the spans of any instrumented framework: while it runs, or from yesterday.

`tttembed_store.spans.processor` is imported by itself: it needs an extra. Private: may change without notice.
"""

from tttembed_store.spans.files import read_spans, retrievals_of, served_of, span_of
from tttembed_store.spans.reading import Reader, Retrieval, Span
from tttembed_store.spans.thumbs import Thumb, thumbed

__all__ = ["Reader", "Retrieval", "Span", "Thumb", "read_spans", "retrievals_of", "served_of", "span_of", "thumbed"]
