"""What rewards teach, and by which objective: any object with the members of `Objective` may stand in a `Recipe`."""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade

if TYPE_CHECKING:
    from tttembed_rag.fitting.objectives import KD, Objective, ReverseKL, SoftmaxGRPO

__all__ = [
    "KD",
    "Objective",
    "ReverseKL",
    "SoftmaxGRPO",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_rag.fitting.objectives": ["KD", "Objective", "ReverseKL", "SoftmaxGRPO"],
        },
    )
