"""Outstanding pairs: requests for them were written to a file, and have no answer yet.

They are noted in the file of paid scores, count against the caps with their highest cost, and are not written again
until their line says that it failed, or somebody asks for it anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tttembed_rag.judging.cache import Answers, Paid
from tttembed_rag.judging.spending import Price
from tttembed_rag.system.keyed import KeyedRows

_COLUMNS = ("pair BLOB", "tokens REAL NOT NULL", "usd REAL NOT NULL", "price TEXT NOT NULL", "open INTEGER NOT NULL")


class Outstanding:
    """Pairs that a file asks about and that have no answer yet, each with the most that it may cost.

    Args:
        rows: Their table.
    """

    def __init__(self, rows: KeyedRows) -> None:
        self._rows = rows

    @classmethod
    def open(cls, path: Path | None) -> Outstanding:
        """The table in the file of paid scores at *path*; None keeps it in memory."""
        return cls(KeyedRows(path, "outstanding", _COLUMNS, kind="a score cache"))

    def close(self) -> None:
        """Close the file."""
        self._rows.close()

    def get(self, pairs: Sequence[bytes]) -> dict[bytes, tuple[Paid, Price]]:
        """Those of *pairs* that are outstanding, with their highest cost and the price that they were written at."""
        return {
            pair: (Paid(None, tokens, usd), Price.parse(price))
            for pair, tokens, usd, price, is_open in self._rows.get(pairs)
            if is_open
        }

    def note(self, costs: Mapping[bytes, Paid], price: Price) -> None:
        """Note pairs as outstanding."""
        said = f"input={price.input!r},output={price.output!r},request={price.request!r}"
        self._rows.put([(pair, paid.tokens, paid.usd, said, 1) for pair, paid in costs.items()], replace=True)

    def release(self, pairs: Sequence[bytes]) -> None:
        """Note that *pairs* are outstanding no more."""
        self._rows.put([(pair, 0.0, 0.0, "", 0) for pair in pairs], replace=True)


class PaidOrOutstanding:
    """The answers that are kept, and outstanding pairs as if they were answered at their highest cost.

    Attributes:
        waiting: The outstanding pairs that were asked for.
    """

    def __init__(self, cache: Answers, outstanding: Outstanding | None) -> None:
        self._cache, self._outstanding = cache, outstanding
        self.waiting: set[bytes] = set()

    def get(self, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
        """The kept answers to *pairs*, and the highest costs of those that are outstanding."""
        kept = self._cache.get(pairs)
        if self._outstanding is None:
            return kept
        waiting = self._outstanding.get([pair for pair in pairs if pair not in kept])
        self.waiting |= waiting.keys()
        return kept | {pair: cost for pair, (cost, _) in waiting.items()}

    def put(self, judge: str, answers: Mapping[bytes, Paid]) -> None:
        """Keep *answers* of a judge."""
        self._cache.put(judge, answers)
