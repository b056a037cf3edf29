"""What rewards teach, and by which objective: any object with the members of `Objective` may stand in a `Recipe`."""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade

if TYPE_CHECKING:
    from tttembed_rag.fitting.objectives import KD as KD
    from tttembed_rag.fitting.objectives import Objective as Objective
    from tttembed_rag.fitting.objectives import ReverseKL as ReverseKL
    from tttembed_rag.fitting.objectives import SoftmaxGRPO as SoftmaxGRPO

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_rag.fitting.objectives": ["KD", "Objective", "ReverseKL", "SoftmaxGRPO"],
        },
    )
