"""Judging served queries under a budget: which call comes next, which answers are kept, when to stop."""

from tttembed_rag.judging.byfile import answered, read_batch, write_batch
from tttembed_rag.judging.files import read_log, write_scores
from tttembed_rag.judging.outstanding import Outstanding
from tttembed_rag.judging.plan import Plan, Progress, Verdicts
from tttembed_rag.judging.running import judge_all
from tttembed_rag.judging.turns import in_turns, water_fill

__all__ = [
    "Outstanding",
    "Plan",
    "Progress",
    "Verdicts",
    "answered",
    "in_turns",
    "judge_all",
    "read_batch",
    "read_log",
    "water_fill",
    "write_batch",
    "write_scores",
]
