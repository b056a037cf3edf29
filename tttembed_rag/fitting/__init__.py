"""What rewards teach, and by which objective: any object with the members of `Objective` may stand in a `Recipe`."""

from tttembed_rag.fitting.objectives import KD, Objective, ReverseKL, SoftmaxGRPO

__all__ = ["KD", "Objective", "ReverseKL", "SoftmaxGRPO"]
