"""How many texts a service takes at once, and which of them it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tttembed_rag.clients.retrying import RefusedError, RefusedTextsError
from tttembed_rag.errors import check_count

ResultT = TypeVar("ResultT")

# Texts that are refused alone, before any is taken, until it is believed that the texts are not why.
_ENOUGH = 8


class Portions:
    """Requests with *most* texts at most, and with fewer once it has shown that a service takes no more."""

    def __init__(self, most: int) -> None:
        check_count("batch_size", most)
        self.most = most

    def ask(
        self, texts: Sequence[str], ask: Callable[[Sequence[str]], Sequence[ResultT]]
    ) -> list[ResultT | RefusedTextsError]:
        """What *ask* gives for each of *texts*: asked in halves where they are refused, down to a text alone.

        A text that is refused alone has its error. Where both halves are taken as they are, their number was too large.

        Raises:
            RefusedError: Text after text is refused, and none is taken.
        """
        return self._halved(texts, ask, [])

    def _halved(
        self, texts: Sequence[str], ask: Callable[[Sequence[str]], Sequence[ResultT]], taken: list[bool]
    ) -> list[ResultT | RefusedTextsError]:
        try:
            results: list[ResultT | RefusedTextsError] = list(ask(texts))
            taken.append(True)
        except RefusedTextsError as exc:
            if len(texts) > 1:
                half, before = (len(texts) + 1) // 2, taken.count(False)
                results = [
                    *self._halved(texts[:half], ask, taken),
                    *self._halved(texts[half:], ask, taken),
                ]
                if taken.count(False) == before:
                    self.most = min(self.most, half)
                return results
            taken.append(False)
            if len(taken) == _ENOUGH and not any(taken):
                raise RefusedError(exc.brief, exc.said) from exc
            return [exc]
        return results
