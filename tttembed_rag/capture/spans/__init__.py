"""What was retrieved and reranked, from the spans of any instrumented framework: while it runs, or from yesterday.

`tttembed_rag.capture.spans.processor` is imported by itself: it needs the extra `telemetry`.

Private: may change without notice.
"""

from tttembed_rag.capture.spans.files import read_spans, retrievals_of, served_of, span_of
from tttembed_rag.capture.spans.reading import Reader, Retrieval, Span, TextsById, children_first
from tttembed_rag.capture.spans.thumbs import Thumb, thumbed

__all__ = [
    "Reader",
    "Retrieval",
    "Span",
    "TextsById",
    "Thumb",
    "children_first",
    "read_spans",
    "retrievals_of",
    "served_of",
    "span_of",
    "thumbed",
]
