"""The public callables of the running Python's standard library, one card of text each, and requests for them."""

from __future__ import annotations

import builtins
import importlib
import inspect
import logging
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any

from tttembed_rag.evaluate.datasets import Dataset

logger = logging.getLogger(__name__)

CARD_LIMIT = 1200  # characters

_SKIPPED = frozenset(
    {
        "antigravity",  # opens a web browser
        "this",  # prints a poem
        "idlelib",  # an application
        "turtledemo",  # an application
        "readline",  # takes over the terminal
        "rlcompleter",  # installs a completer
        "has_key",  # hides the function `curses.has_key`
        "lib2to3",  # writes a grammar cache
        "distutils",  # setuptools replaces it on import
        "encodings",  # a hundred codecs, reached through `codecs`
        "test",
        "tests",
    }
)

# The modules behind `os`, `os.path` and `xml.parsers.expat`, which people never import by name.
_BACKSTAGE = frozenset({"genericpath", "nt", "ntpath", "posix", "posixpath", "pyexpat"})


@dataclass(frozen=True)
class Callables:
    """The cards by canonical name, and the canonical name of every name found."""

    texts: dict[str, str]
    canonical: dict[str, str]


@dataclass(frozen=True)
class _Found:
    """One public name, the object behind it, and whether it is inherited from a base class."""

    name: str
    target: Callable[..., Any]
    inherited: bool

    def rank(self) -> tuple[bool, bool, int, bool, int, str]:
        """Sort key: the name that a person would write comes first."""
        own_name = getattr(self.target, "__qualname__", "")
        return (
            _root(self.name) in _BACKSTAGE,
            self.inherited,
            self.name.count("."),
            own_name.lower() not in self.name.lower(),
            len(self.name),
            self.name,
        )


def standard_library() -> Dataset:
    """The standard library's callables and the requests they answer."""
    callables = collect_callables()
    table = Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8")
    queries, qrels = {}, {}
    for number, line in enumerate(table.splitlines()[1:]):
        request, answers = line.split("\t")
        relevant = {callables.canonical[name]: 1.0 for name in answers.split(",") if name in callables.canonical}
        if relevant:  # another Python version may lack a callable
            queries[f"request-{number}"] = request
            qrels[f"request-{number}"] = relevant
    return Dataset("python-standard-library", callables.texts, queries, qrels)


def collect_callables() -> Callables:
    """Return a card for each documented public callable of the standard library.

    An object has one card, also where several modules re-export it or subclasses inherit it. All modules
    are imported, apart from those that do something visible when they are imported.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated modules warn when imported
        names_of: dict[int, list[_Found]] = {}
        for name, module in _modules():
            for found in _documented(name, module):
                names_of.setdefault(id(found.target), []).append(found)
        firsts = {key: min(group, key=_Found.rank) for key, group in names_of.items()}
        texts = dict(sorted((first.name, _card(first)) for first in firsts.values()))
    canonical = {found.name: firsts[key].name for key, group in names_of.items() for found in group}
    return Callables(texts, canonical)


def _modules() -> Iterator[tuple[str, ModuleType]]:
    other_platform = {"ntpath", "posixpath"} - {os.path.__name__}
    for name in sorted({*sys.stdlib_module_names, "os.path"} - other_platform):
        yield from _walk(name)


def _walk(name: str) -> Iterator[tuple[str, ModuleType]]:
    """Yield the module called `name` and its public submodules."""
    leaf = name.rpartition(".")[2]
    if leaf in _SKIPPED or leaf.startswith("_"):
        return
    try:
        module = importlib.import_module(name)
    except Exception:  # a module of another platform fails in its own way; the others still count
        logger.debug("skipping %s, which does not import here", name, exc_info=True)
        return
    yield name, module
    for submodule in pkgutil.iter_modules(getattr(module, "__path__", ())):
        yield from _walk(f"{name}.{submodule.name}")


def _documented(module_name: str, module: ModuleType) -> Iterator[_Found]:
    """Yield the public classes, functions and methods of one module that have their own docstring."""
    prefix = "" if module_name == "builtins" else f"{module_name}."
    for found in _members(prefix, module):
        doc = found.target.__doc__
        if isinstance(doc, str) and doc.strip():
            yield found


def _members(prefix: str, module: ModuleType) -> Iterator[_Found]:
    for name in _public_names(module):
        value = getattr(module, name, None)
        if not _belongs(name, value, module):
            continue
        if inspect.isclass(value):
            yield _Found(prefix + name, value, inherited=False)
            yield from _methods(prefix + name, value)
        elif inspect.isroutine(value):
            yield _Found(prefix + name, _unbound(value), inherited=False)


def _public_names(module: ModuleType) -> list[str]:
    names = {*dir(module), *getattr(module, "__all__", ())}
    return sorted(name for name in names if not name.startswith("_"))


def _belongs(name: str, value: object, module: ModuleType) -> bool:
    """Whether `module` offers `value` to its users, rather than having imported it for itself."""
    if hasattr(module, "__all__"):
        return name in module.__all__
    home = _root(getattr(value, "__module__", None) or module.__name__)
    if module is builtins:
        return home in sys.stdlib_module_names
    return home.startswith("_") or home in {_root(module.__name__), *_BACKSTAGE}


def _root(name: str) -> str:
    return name.partition(".")[0]


def _methods(prefix: str, cls: type) -> Iterator[_Found]:
    attributes = {name: (value, base) for base in reversed(cls.__mro__) for name, value in vars(base).items()}
    for name, (value, base) in sorted(attributes.items()):
        target = _unbound(value)
        if not name.startswith("_") and inspect.isroutine(value) and callable(target):
            # a base class in a private module, such as `_socket.socket`, has no name of its own to go by
            lent = base is not cls and not base.__module__.startswith("_")
            yield _Found(f"{prefix}.{name}", target, inherited=lent)


def _unbound(routine: Any) -> Any:
    """The function that a bound method, class method or static method wraps."""
    function = getattr(routine, "__func__", routine)
    owner = getattr(function, "__self__", None)
    if not isinstance(function, BuiltinFunctionType) or owner is None or isinstance(owner, ModuleType):
        return function
    cls = owner if inspect.isclass(owner) else type(owner)
    return inspect.getattr_static(cls, function.__name__, function)


def _card(found: _Found) -> str:
    """The name and the docstring; a signature would crowd words out of the embedded text."""
    return f"{found.name}\n\n{inspect.cleandoc(found.target.__doc__ or '')}"[:CARD_LIMIT].rstrip()
