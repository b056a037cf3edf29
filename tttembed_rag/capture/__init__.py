"""From a running application to rewards: which documents were shown for a query, and what a judge said of them."""

from tttembed_rag.capture.log import Known, Log, checked_log
from tttembed_rag.capture.rewardlog import RewardLog
from tttembed_rag.capture.textvectors import TextVectors

__all__ = ["Known", "Log", "RewardLog", "TextVectors", "checked_log"]
