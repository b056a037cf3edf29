"""Which names are public: those that packages list, and the reference with them."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PRIVATE = "Private: may change without notice."


def test_every_package_lists_its_names_or_says_that_they_may_change() -> None:
    """At most 150 names are public; the reference, which is made from them, lists the same ones."""
    folders = [path.parent for path in (REPO / "tttembed_rag").rglob("__init__.py")]
    packages = {".".join(folder.relative_to(REPO).parts) for folder in folders}
    private = {name for name in packages if PRIVATE in str(import_module(name).__doc__)}
    public = sorted(name for name in packages if not any(f"{name}.".startswith(f"{one}.") for one in private))
    listed = {name: import_module(name).__all__ for name in public}
    reference = (REPO / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: (\S+)\n    options:\n      members: \[(.*)\]$", reference, flags=re.MULTILINE)

    assert {name: names.split(", ") for name, names in shown} == listed
    assert len({one for names in listed.values() for one in names}) <= 150
