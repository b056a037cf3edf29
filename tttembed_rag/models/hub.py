"""Whether the hub of models and data sets can be asked, found out in seconds instead of minutes."""

from __future__ import annotations

from tttembed_rag.errors import require

# Seconds to wait for a connection; the hub's own clients would try again and again.
_PATIENCE = 5.0


def why_unreachable(*, extra: str) -> str | None:
    """Why the hub cannot be reached, in a few words; None if it answers, or is not to be asked.

    With HF_HUB_OFFLINE=1 it is not to be asked: what was downloaded before is used.

    Args:
        extra: The extra of this package that brings the hub's client.
    """
    hub = require("huggingface_hub", extra)
    constants = require("huggingface_hub.constants", extra)
    if constants.HF_HUB_OFFLINE:
        return None
    try:
        hub.get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception as exc:  # noqa: BLE001 (its HTTP library changes; whatever it raises is the reason)
        return (
            f"{constants.ENDPOINT} is not reachable: {str(exc).strip().partition(chr(10))[0] or type(exc).__name__}; "
            "HF_HUB_OFFLINE=1 uses what was downloaded before"
        )
    return None
