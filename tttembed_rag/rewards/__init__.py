"""What flows through the package: queries that were served, feedback on them, and rewards as columns to fit from."""

from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.rewards.events import Event, Feedback
from tttembed_rag.rewards.rewards import Rewards

__all__ = ["DEFAULT_TASK", "Event", "Feedback", "Rewards"]
