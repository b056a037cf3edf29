"""`Worker`: judge, fit, gate and publish again and again, on new evidence only."""

from tttembed_rag.worker.probe import Probe
from tttembed_rag.worker.rounds import Worker
from tttembed_rag.worker.steps import Action, Round, Step

__all__ = ["Action", "Probe", "Round", "Step", "Worker"]
