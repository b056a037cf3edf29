"""A store that may be away, and what it last answered."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from tttembed_rag.errors import StoreReplaced, StoreUnavailable

if TYPE_CHECKING:
    from tttembed_store.sql import Store

_log = logging.getLogger(__name__)


class Reached:
    """A *store* that is given, or opened by its URL as soon as that succeeds; the log calls it by its *name*.

    One line in the log says that it stops to answer, and one that it is back. A URL that can never be that of a store
    is refused with a StoreError. Who *records* makes an SQLite file that is not there, and the log tells at once of a
    folder that is missing; for who does not, it is refused.
    """

    def __init__(self, store: Store | str, name: str, *, records: bool) -> None:
        self.source = store
        self._name, self._records = name, records
        self._opened: Store | None = None
        self._contact: float | None = None
        # Why it does not answer, which the log tells once; None while it does.
        self.error: str | None = None
        if isinstance(store, str):
            from tttembed_store.sql.database import Database

            database = Database(store)
            if not records:
                database.check_file()
            elif database.file is not None and not database.file.exists():
                if database.file.parent.is_dir():
                    try:
                        self.store()
                    except StoreUnavailable as error:
                        self.failed(error)
                    self.close()
                else:
                    _log.warning("%s: nothing can be written until its folder is there: %s", name, database.file.parent)

    def store(self) -> Store:
        """The store; a StoreUnavailable where it cannot be reached now."""
        if not isinstance(self.source, str):
            return self.source
        if self._opened is None:
            from tttembed_store.sql import open_store

            # Who follows makes no empty store in place of a file that was moved away.
            self._opened = open_store(self.source, create=self._records or not self.source.startswith("sqlite"))
        return self._opened

    def close(self) -> None:
        """Close the store if it was opened here."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def age(self) -> float | None:
        """Seconds since the last answer; None before the first."""
        return None if self._contact is None else time.monotonic() - self._contact

    def answered(self) -> None:
        """It answered."""
        if self.error is not None:
            _log.warning("%s answers again", self._name)
        self.error, self._contact = None, time.monotonic()

    def failed(self, error: Exception) -> None:
        """It answered with an *error*; one that was replaced is opened anew."""
        if isinstance(error, StoreReplaced):
            self.close()
        if self.error is None:
            _log.warning("%s: does not answer: %s", self._name, error)
        self.error = str(error)
