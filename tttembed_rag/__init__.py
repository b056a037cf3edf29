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
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.gate.deciding import fit
from tttembed_rag.gate.tuning import Tuned, tune
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.rescorer import Rescorer
from tttembed_rag.offsets.values import Certificate, Offset
from tttembed_rag.rewards import Rewards
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.serving.context import context, current_task
from tttembed_rag.serving.live import LiveOffsets

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
    "Recipe",
    "Rescorer",
    "RewardError",
    "Rewards",
    "Scale",
    "TTTEmbedError",
    "Tuned",
    "VectorError",
    "context",
    "current_task",
    "fit",
    "tune",
]
