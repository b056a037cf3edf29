"""Judging served queries under a budget: which call comes next, which answers are kept, when to stop."""

from tttembed_rag.judging.cache import Answers, Paid, ScoreCache
from tttembed_rag.judging.files import write_scores
from tttembed_rag.judging.plan import Plan, Progress, Verdicts
from tttembed_rag.judging.running import judge_all
from tttembed_rag.judging.spending import Budget, Price
from tttembed_rag.rewards.rows import read_log

__all__ = [
    "Answers",
    "Budget",
    "Paid",
    "Plan",
    "Price",
    "Progress",
    "ScoreCache",
    "Verdicts",
    "judge_all",
    "read_log",
    "write_scores",
]
