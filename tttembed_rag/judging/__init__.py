"""Judging served queries under a budget: which call comes next, which answers are kept, when to stop."""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade

if TYPE_CHECKING:
    from tttembed_rag.judging.cache import Answers as Answers
    from tttembed_rag.judging.cache import Paid as Paid
    from tttembed_rag.judging.cache import ScoreCache as ScoreCache
    from tttembed_rag.judging.plan import Plan as Plan
    from tttembed_rag.judging.plan import Verdicts as Verdicts
    from tttembed_rag.judging.running import judge_all as judge_all
    from tttembed_rag.judging.spending import Budget as Budget
    from tttembed_rag.judging.spending import Price as Price

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_rag.judging.cache": ["Answers", "Paid", "ScoreCache"],
            "tttembed_rag.judging.plan": ["Plan", "Verdicts"],
            "tttembed_rag.judging.running": ["judge_all"],
            "tttembed_rag.judging.spending": ["Budget", "Price"],
        },
    )
