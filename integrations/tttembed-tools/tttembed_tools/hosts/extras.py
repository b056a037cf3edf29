"""How a library is named that an extra of this distribution brings."""

from __future__ import annotations

from functools import partial

from tttembed_rag.errors import require as require_of

__all__ = ["require"]

require = partial(require_of, of="tttembed-tools")
