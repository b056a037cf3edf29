"""For adapters of frameworks: the plumbing that a wrapper, a tap or a retriever is made of.

A wrapper that embeds alone calls `Steering.apply`; one that sorts what was found makes a `Request` first. A tap writes
into a `Log`, and logs its own failures in a `FailureLog`.
"""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade

if TYPE_CHECKING:
    from tttembed_rag.embedders.bridge import bridge_for
    from tttembed_rag.judges.contract import ascored, checked_judge, checked_rewards, scored
    from tttembed_rag.offsets.orders import in_reward_order
    from tttembed_rag.serving.live import OffsetSupplier
    from tttembed_rag.serving.log import Log, checked_log
    from tttembed_rag.serving.request import Request
    from tttembed_rag.serving.saved import checked_store, steering_of, url_of
    from tttembed_rag.serving.tasks import TaskSource, checked_task, resolve_task
    from tttembed_rag.serving.twopass import adrive, drive
    from tttembed_rag.system.facades import facade
    from tttembed_rag.system.failures import FailureLog

__all__ = [
    "FailureLog",
    "Log",
    "OffsetSupplier",
    "Request",
    "TaskSource",
    "adrive",
    "ascored",
    "bridge_for",
    "checked_judge",
    "checked_log",
    "checked_rewards",
    "checked_store",
    "checked_task",
    "drive",
    "facade",
    "in_reward_order",
    "resolve_task",
    "scored",
    "steering_of",
    "url_of",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_rag.serving.log": ["Log", "checked_log"],
            "tttembed_rag.embedders.bridge": ["bridge_for"],
            "tttembed_rag.judges.contract": ["ascored", "checked_judge", "checked_rewards", "scored"],
            "tttembed_rag.offsets.orders": ["in_reward_order"],
            "tttembed_rag.serving.live": ["OffsetSupplier"],
            "tttembed_rag.serving.request": ["Request"],
            "tttembed_rag.serving.saved": ["checked_store", "steering_of", "url_of"],
            "tttembed_rag.serving.tasks": ["TaskSource", "checked_task", "resolve_task"],
            "tttembed_rag.serving.twopass": ["adrive", "drive"],
            "tttembed_rag.system.facades": ["facade"],
            "tttembed_rag.system.failures": ["FailureLog"],
        },
    )
