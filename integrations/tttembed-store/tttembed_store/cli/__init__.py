"""The commands that tttembed-store adds to `tttembed`, each found by an entry point.

Private: may change without notice.
"""

from tttembed_store.cli import embedding, spans, store  # noqa: F401 - each adds its commands to the group
from tttembed_store.cli.group import operators

__all__ = ["operators"]
