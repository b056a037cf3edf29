"""Which names are public: those that packages list, and the reference with them."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
# Modules that list public names too. Errors stand beside the count: whoever catches one knows its name from the log.
MODULES = {"tttembed_rag.adapting", "tttembed_rag.testing"}
PRIVATE = "Private: may change without notice."
TOPS = (
    REPO / "tttembed_rag",
    REPO / "integrations" / "tttembed-store" / "tttembed_store",
    REPO / "integrations" / "tttembed-tools" / "tttembed_tools",
)


def test_every_package_lists_its_names_or_says_that_they_may_change() -> None:
    """At most 110 names are public; the reference, which is made from them, lists the same ones."""
    files = [(top, path) for top in TOPS for path in top.rglob("__init__.py")]
    packages = {".".join(path.parent.relative_to(top.parent).parts) for top, path in files}
    private = {name for name in packages if PRIVATE in str(import_module(name).__doc__)}
    public = {name for name in packages if not any(f"{name}.".startswith(f"{room}.") for room in private)} | MODULES
    listed = {name: import_module(name).__all__ for name in sorted(public)}
    reference = (REPO / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: (\S+)\n    options:\n      members: \[(.*)\]$", reference, flags=re.MULTILINE)

    assert {name: names.split(", ") for name, names in shown} == listed
    assert len({name for names in listed.values() for name in names}) <= 110
