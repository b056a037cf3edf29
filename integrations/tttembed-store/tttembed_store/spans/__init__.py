"""What was retrieved and reranked, from the spans of any instrumented framework: while it runs, or from yesterday.

`tttembed_store.spans.processor` is imported by itself: it needs an extra. Private: may change without notice.
"""

from tttembed_store.spans.files import Thumb, read_spans, served_in, span_of, thumbed
from tttembed_store.spans.reading import Reader, Span

__all__ = ["Reader", "Span", "Thumb", "read_spans", "served_in", "span_of", "thumbed"]
