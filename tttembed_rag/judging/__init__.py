"""Judging served queries under a budget: which call comes next, which answers are kept, when to stop."""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade

if TYPE_CHECKING:
    from tttembed_rag.judging.cache import Answers, Paid, ScoreCache
    from tttembed_rag.judging.plan import Plan, Verdicts
    from tttembed_rag.judging.running import judge_all
    from tttembed_rag.judging.spending import Budget, Price

__all__ = [
    "Answers",
    "Budget",
    "Paid",
    "Plan",
    "Price",
    "ScoreCache",
    "Verdicts",
    "judge_all",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_rag.judging.cache": ["Answers", "Paid", "ScoreCache"],
            "tttembed_rag.judging.plan": ["Plan", "Verdicts"],
            "tttembed_rag.judging.running": ["judge_all"],
            "tttembed_rag.judging.spending": ["Budget", "Price"],
        },
    )
