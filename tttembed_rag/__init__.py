"""Keep a reranker's or judge's verdicts: offsets that improve query vectors, published on evidence."""

from tttembed_rag.errors import (
    DataError,
    EmbedderError,
    InputError,
    JudgeError,
    MissingExtraError,
    OffsetFileError,
    RewardError,
    TTTEmbedError,
    VectorError,
)
from tttembed_rag.gate import fit
from tttembed_rag.offsets import Certificate, Evidence, Offset, Offsets
from tttembed_rag.rewards import Rewards, Scale
from tttembed_rag.serving import LiveOffsets, current_scope, scope

__version__ = "0.1.0"

__all__ = [
    "Certificate",
    "DataError",
    "EmbedderError",
    "Evidence",
    "InputError",
    "JudgeError",
    "LiveOffsets",
    "MissingExtraError",
    "Offset",
    "OffsetFileError",
    "Offsets",
    "RewardError",
    "Rewards",
    "Scale",
    "TTTEmbedError",
    "VectorError",
    "current_scope",
    "fit",
    "scope",
]
