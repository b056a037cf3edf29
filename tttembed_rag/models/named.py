"""Objects of the user's own, named in one line of text: ``python:MODULE:NAME``."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tttembed_rag.errors import InputError
from tttembed_rag.models.options import without_secrets


def load_named(what: str, spec: str, target: str) -> Any:
    """The object called *target*, ``MODULE:NAME``; a class, and a function without arguments, is called to make it.

    Modules of the current folder are found too. Errors name the kind of thing, *what*, and the whole text, *spec*.

    Raises:
        InputError: There is no such object, or it cannot be made without arguments.
    """
    module, _, name = target.partition(":")
    if not (module and name):
        raise InputError(f"{what}: expected python:MODULE:NAME, got {without_secrets(spec)!r}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        named = getattr(import_module(module), name)
    except Exception as exc:  # the module is the user's own, and may raise anything
        reason = f"{type(exc).__name__}: {exc}"
        raise InputError(f"{what}: expected an importable MODULE:NAME in {without_secrets(spec)!r} ({reason})") from exc
    if inspect.isclass(named) or (inspect.isfunction(named) and not takes(named)):
        try:
            return named()
        except Exception as exc:
            reason = f"{type(exc).__name__}: {exc}"
            raise InputError(f"{what}: expected {target} to be made without arguments ({reason})") from exc
    return named


def takes(function: Any) -> int:
    """How many arguments *function* must be given by place."""
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return sum(one.kind in places and one.default is inspect.Parameter.empty for one in parameters)
