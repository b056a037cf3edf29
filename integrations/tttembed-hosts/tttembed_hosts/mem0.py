"""mem0: a memory whose searches are steered, and what it stores is not.

    memory = steer(Memory.from_config(config), offsets=follow(url), task="memories")

mem0 names the role of every text that it embeds: ``add``, ``update`` or ``search``. Only the last is steered. Wrapped
embeddings of LangChain behind mem0's provider ``langchain`` would steer what is stored, too: mem0 embeds all texts by
`embed_query` there.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tttembed_rag import InputError, Offsets, Steering
from tttembed_rag.adapting import OffsetSupplier, TaskSource

__all__ = ["SearchEmbedder", "steer"]

MemoryT = TypeVar("MemoryT")


class SearchEmbedder:
    """mem0's embedding model, with an offset added to the vectors of searches alone; all else is the model's own.

    Args:
        base: An object with mem0's ``embed(text, memory_action)``.
        steering: What adds the offset.
    """

    def __init__(self, base: Any, steering: Steering) -> None:
        self.base = base
        self._steering = steering

    def embed(self, text: str, memory_action: str | None = None) -> Any:
        """The vector of a text (d,), as a list of numbers."""
        vector = self.base.embed(text, memory_action)
        return self._steering.apply(vector, text) if memory_action == "search" else vector

    def __getattr__(self, name: str) -> Any:
        if name == "base" or name.startswith("__"):  # asked of a copy that has nothing yet
            raise AttributeError(name)
        return getattr(self.base, name)


def steer(memory: MemoryT, *, offsets: Offsets | OffsetSupplier, task: TaskSource = None) -> MemoryT:
    """*memory* itself, whose searches are steered from now on.

    Args:
        memory: A ``mem0.Memory`` or ``AsyncMemory``.
        offsets: Learned offsets; `LiveOffsets`, or a store that is followed, where they are replaced while serving.
        task: The task of every search, or a function from query text to task.

    Raises:
        InputError: *memory* has no embedding model, or is steered already.
    """
    model: Any = getattr(memory, "embedding_model", None)
    if not callable(getattr(model, "embed", None)):
        raise InputError(f"memory: expected a mem0 Memory, got {type(memory).__name__}")
    if isinstance(model, SearchEmbedder):
        raise InputError("memory: expected one without offsets, got one that is steered already")
    memory.embedding_model = SearchEmbedder(model, Steering(offsets, task))  # type: ignore[attr-defined]
    return memory
