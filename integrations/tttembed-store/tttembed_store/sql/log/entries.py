"""Served queries of one transaction, checked and merged: each query and each document once."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice, product
from urllib.parse import unquote

from tttembed_rag.errors import InputError
from tttembed_rag.rewards.names import checked_name, cleaned
from tttembed_rag.rewards.observations import MAX_DEPTH, Served
from tttembed_store.sql.records import checked_reward, checked_vector

_log = logging.getLogger(__name__)

# The tenant, task and id of a query; the tenant and id of a document.
QueryKey = tuple[str, str, str]
DocumentKey = tuple[str, str]

# Letters and digits of a text that an id is taken to hold, at least.
_TELLING = 8


@dataclass(slots=True)
class DocumentEntry:
    """What a transaction says of one document: its text, and the bytes of its vectors by embedder."""

    text: str | None = None
    vectors: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class QueryEntry:
    """What a transaction says of one query, served *seen* times, *first* at and last *at* a Unix second by *embedder*.

    It has the bytes of its base vectors by embedder, the places of its candidates, and their rewards by candidate and
    source, some of them silent.
    """

    embedder: str
    at: float
    first: float
    text: str | None = None
    seen: int = 0
    vectors: dict[str, bytes] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    rewards: dict[tuple[str, str], float] = field(default_factory=dict)
    silent: set[tuple[str, str]] = field(default_factory=set)


class Entries:
    """Served queries, checked and merged; *judge* gave the candidates' rewards, and is empty where they carry none.

    Where they *fill* what is empty alone, what is in the store stays, and nothing is cut off before that is known. A
    store without texts gives its *text_id*, which an id or task that tells of a text becomes, and every source.

    Raises:
        InputError: An id, vector or reward is not what was expected; the message names it.
    """

    def __init__(
        self, served: Iterable[Served], judge: str, *, fills: bool = False, text_id: Callable[[str], str] | None = None
    ) -> None:
        self.judge, self.fills, self._text_id = judge, fills, text_id
        self.queries: dict[QueryKey, QueryEntry] = {}
        self.documents: dict[DocumentKey, DocumentEntry] = defaultdict(DocumentEntry)
        for one in served:
            self._add(one)

    def _add(self, served: Served) -> None:
        """Merge a served query."""
        tenant = checked_name("tenant", served.tenant, empty=True)
        task, name = checked_name("task", served.task), checked_name("query_id", served.query_id)
        embedder = checked_name("embedder", served.embedder, empty=True)
        source = checked_name("source", served.source, empty=True)
        at = time.time() if served.at is None else float(served.at)
        if not math.isfinite(at):
            raise InputError(f"at: expected Unix seconds, got {at}")
        if (text_id := self._text_id) is not None:
            task, source = text_id(task) if _is(task, served.query) else task, source and text_id(source)
        query = self.queries.setdefault((tenant, task, self._opaque(name, served.query)), QueryEntry(embedder, at, at))
        query.seen += 1
        query.first = min(query.first, at)
        if at >= query.at:
            query.at, query.embedder = at, embedder
        if served.query is not None and text_id is None:
            query.text = cleaned(served.query)
        if served.vector is not None:
            query.vectors[embedder] = checked_vector("vector", served.vector)
        if len(served.candidates) > MAX_DEPTH:
            _log.warning("a query was shown %d candidates: the first %d are kept", len(served.candidates), MAX_DEPTH)
        shown: dict[str, int] = {}
        for place, candidate in enumerate(served.candidates[:MAX_DEPTH]):
            doc_id = self._opaque(checked_name("doc_id", candidate.doc_id), candidate.text)
            shown.setdefault(doc_id, place)
            document = self.documents[tenant, doc_id]
            if candidate.text is not None and text_id is None:
                document.text = cleaned(candidate.text)
            if candidate.vector is not None:
                document.vectors[embedder] = checked_vector("candidates", candidate.vector)
            if candidate.reward is not None:
                if not self.judge:
                    raise InputError("judge: expected the fingerprint of who gave the rewards, got none")
                reward, pair = checked_reward("reward", candidate.reward), (doc_id, source)
                if not (candidate.silent and pair in query.rewards):
                    (query.silent.add if candidate.silent else query.silent.discard)(pair)
                    query.rewards[pair] = reward
        # What was shown last comes before what was shown earlier; a document keeps the place that it had first.
        query.places = dict(islice((shown | query.places).items(), None if self.fills else MAX_DEPTH))
        query.rewards = {pair: reward for pair, reward in query.rewards.items() if pair[0] in query.places}

    def _opaque(self, name: str, text: str | None) -> str:
        return name if self._text_id is None or not tells(name, text) else self._text_id(name)


def tells(name: str, text: str | None) -> bool:
    """Whether an id may be words of somebody, not the opaque id of a program: it has blanks, or holds the text."""
    if not unquote(name).isascii() or len(name.split()) != 1 or _is(name, text):
        return True
    said = _letters(unquote(name))  # of an address, in which the text may stand
    words = _letters(text or "", len(said) + 1)
    return len(words) >= _TELLING and words in said


def _is(name: str, text: str | None) -> bool:
    """Whether a name is a text, but for capitals and all that is no letter or digit."""
    said = _letters(unquote(name))
    return text is not None and said == _letters(text, len(said) + 1)


def _letters(text: str, most: int | None = None) -> str:
    return "".join(islice(filter(str.isalnum, text), most)).casefold()


def with_text_ids(
    rewards: Mapping[QueryKey, Mapping[str, float]], text_id: Callable[[str], str]
) -> dict[QueryKey, Mapping[str, float]]:
    """*rewards* under the names as given and, for those that were texts in a store without texts, their *text_id*."""
    both: dict[QueryKey, Mapping[str, float]] = {}
    for (tenant, task, query), given in rewards.items():
        values = {**{text_id(document): value for document, value in given.items()}, **given}
        names = product((text_id(task), task), (text_id(query), query))
        both |= {(tenant, task_name, name): values for task_name, name in names}
    return both
