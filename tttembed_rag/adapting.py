"""For adapters of frameworks: the plumbing that a wrapper, a tap or a retriever is made of.

A wrapper that embeds alone calls `Steering.apply`; one that sorts what was found makes a `Request` first, and has a
`Sorter`. A tap writes into a `Log`, and logs its own failures in a `FailureLog`.
"""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade as facade

if TYPE_CHECKING:
    from tttembed_rag.embedders.bridge import bridge_for as bridge_for
    from tttembed_rag.judges.contract import ascored as ascored
    from tttembed_rag.judges.contract import checked_judge as checked_judge
    from tttembed_rag.judges.contract import checked_rewards as checked_rewards
    from tttembed_rag.judges.contract import scored as scored
    from tttembed_rag.offsets.orders import in_reward_order as in_reward_order
    from tttembed_rag.serving.live import OffsetSupplier as OffsetSupplier
    from tttembed_rag.serving.log import Log as Log
    from tttembed_rag.serving.log import checked_log as checked_log
    from tttembed_rag.serving.saved import checked_store as checked_store
    from tttembed_rag.serving.saved import steering_of as steering_of
    from tttembed_rag.serving.saved import url_of as url_of
    from tttembed_rag.serving.sorter import Sorter as Sorter
    from tttembed_rag.serving.steering import Request as Request
    from tttembed_rag.serving.tasks import TaskSource as TaskSource
    from tttembed_rag.serving.tasks import checked_task as checked_task
    from tttembed_rag.serving.tasks import resolve_task as resolve_task
    from tttembed_rag.serving.twopass import adrive as adrive
    from tttembed_rag.serving.twopass import drive as drive
    from tttembed_rag.system.facades import facade as facade
    from tttembed_rag.system.failures import FailureLog as FailureLog

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_rag.serving.log": ["Log", "checked_log"],
            "tttembed_rag.embedders.bridge": ["bridge_for"],
            "tttembed_rag.judges.contract": ["ascored", "checked_judge", "checked_rewards", "scored"],
            "tttembed_rag.offsets.orders": ["in_reward_order"],
            "tttembed_rag.serving.live": ["OffsetSupplier"],
            "tttembed_rag.serving.saved": ["checked_store", "steering_of", "url_of"],
            "tttembed_rag.serving.sorter": ["Sorter"],
            "tttembed_rag.serving.steering": ["Request"],
            "tttembed_rag.serving.tasks": ["TaskSource", "checked_task", "resolve_task"],
            "tttembed_rag.serving.twopass": ["adrive", "drive"],
            "tttembed_rag.system.facades": ["facade"],
            "tttembed_rag.system.failures": ["FailureLog"],
        },
    )
