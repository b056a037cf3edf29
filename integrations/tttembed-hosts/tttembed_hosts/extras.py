"""How a library is named that an extra of this distribution brings."""

from __future__ import annotations

from functools import partial

from tttembed_rag import errors

__all__ = ["require"]

require = partial(errors.require, of="tttembed-hosts")
