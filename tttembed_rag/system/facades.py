"""Packages that list public names and import nothing: each name is loaded from its own module when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def facade(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__all__``, ``__getattr__`` and ``__dir__`` (PEP 562) of a *package* whose *names* come from these modules.

    The package imports the same names where ``TYPE_CHECKING`` holds, for those who read types.
    """
    module_of = {name: module for module, listed in names.items() for name in listed}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)  # the next look-up finds it without asking here
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return sorted(module_of, key=lambda name: (not name.isupper(), name)), load, listed
