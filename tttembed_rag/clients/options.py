"""One line of text that names something and its options, as addresses have them: ``kind:target?name=value&...``."""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from tttembed_rag.clients.endpoint import DOMAINS, is_of
from tttembed_rag.errors import InputError

__all__ = ["Options", "without_secrets"]

DefaultT = TypeVar("DefaultT")


def without_secrets(spec: str) -> str:
    """A spec without its options and the user of its address: either may be a secret, and errors are logged."""
    head, slashes, rest = spec.partition("?")[0].partition("://")
    return f"{head}{slashes}{rest.rpartition('@')[2]}"


class Options:
    """The kind and the target of ``kind:target?name=value&...``, and its options; one that is not taken is an error.

    *what* the text *spec* names is said in errors, which repeat no option: it may be a secret.
    """

    def __init__(self, what: str, spec: str) -> None:
        address, _, options = spec.partition("?")
        self.kind, _, self.target = address.partition(":")
        self._what, self.spec = what, without_secrets(spec)
        self._left = dict(parse_qsl(options, keep_blank_values=True))
        self._known: list[str] = []

    def take(self, name: str, default: DefaultT) -> str | DefaultT:
        """The text of an option, which may be empty, or *default* without it."""
        self._known.append(name)
        return self._left.pop(name, default)

    def number(self, name: str, default: float) -> float:
        """The number of an option, or *default*."""
        text = self.take(name, str(default))
        try:
            return float(text)
        except ValueError as exc:
            raise InputError(f"{self._what}: expected a number for {name} in {self.spec!r}, got {text!r}") from exc

    def whole(self, name: str, default: int) -> int:
        """The whole number >= 0 of an option, or *default*."""
        value = self.number(name, default)
        if not (value >= 0 and value.is_integer()):
            raise InputError(f"{self._what}: expected a whole number for {name} in {self.spec!r}, got {value:g}")
        return int(value)

    def key(self, default: str | None, url: str | None) -> str | None:
        """The key in the environment variable that the option ``key`` names; None where it names none.

        Without the option it is a vendor's, in *default*, where *url* is that vendor's or None.
        """
        if "key" not in self._left and default is not None and is_of(url, DOMAINS[default]):
            return os.environ.get(default)
        named = self.take("key", "")
        if named and named not in os.environ:
            raise InputError(
                f"{self._what}: expected key=NAME with an environment variable that is set, found none of that name"
            )
        return os.environ.get(named)

    def machine(self) -> dict[str, Any]:
        """The options of a model on this machine."""
        options = {name: self.take(name, "") or None for name in ("revision", "device", "dtype")}
        return {**options, "trust_remote_code": self.take("trust_remote_code", "").lower() in ("true", "yes", "1")}

    def check_all_used(self) -> None:
        """Refuse options that were not taken."""
        if self._left:
            known = ", ".join(self._known)
            # A name without a value may be a secret that was meant as an address's own.
            got = ", ".join(name for name, value in self._left.items() if value) or "another text"
            raise InputError(f"{self._what}: expected options {known} in {self.spec!r}, got {got}")

    def load(self) -> Any:
        """The object that the target ``MODULE:NAME`` names; a class, or a function without arguments, is called.

        Modules of the current folder are found too.
        """
        module, _, name = self.target.partition(":")
        if not (module and name):
            raise InputError(f"{self._what}: expected python:MODULE:NAME, got {self.spec!r}")
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        expected = f"an importable MODULE:NAME in {self.spec!r}"
        try:  # the module is the user's own, and may raise anything
            named = getattr(import_module(module), name)
            expected = f"{self.target} to be made without arguments"
            return named() if inspect.isclass(named) or (inspect.isfunction(named) and not _needed(named)) else named
        except Exception as exc:
            raise InputError(f"{self._what}: expected {expected} ({type(exc).__name__}: {exc})") from exc


def _needed(function: Any) -> list[inspect.Parameter]:
    """The arguments that *function* must be given by place."""
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [parameter for parameter in parameters if parameter.kind in places and parameter.default is parameter.empty]
