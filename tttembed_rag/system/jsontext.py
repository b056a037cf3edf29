"""JSON from outside, which may be anything."""

from __future__ import annotations

import json
from typing import Any


def parsed_json(text: str | bytes) -> Any:
    """The value that *text* is, or a ValueError where it is no JSON, or values in it are nested too deep."""
    try:
        return json.loads(text)
    except RecursionError as exc:
        raise ValueError("values are nested too deep") from exc
