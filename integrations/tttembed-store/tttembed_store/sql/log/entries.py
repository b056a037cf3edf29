"""Served queries of one transaction, checked, each under the names that its row is found by."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from urllib.parse import unquote

from tttembed_rag.errors import InputError
from tttembed_rag.rewards.names import checked_name, cleaned
from tttembed_rag.rewards.observations import MAX_DEPTH, Candidate, Served
from tttembed_store.sql.records import checked_reward, checked_vector

_log = logging.getLogger(__name__)

# The tenant, task and id of a query; the tenant and id of a document.
QueryKey = tuple[str, str, str]
DocumentKey = tuple[str, str]

# Letters and digits of a text that an id is taken to hold, at least.
_TELLING = 8


class Entries:
    """What a transaction writes; *judge* gave the candidates' rewards, and is empty where they carry none.

    Where they were *recorded* by the application each query keeps its last candidates; of feedback none is cut off
    before it is known what is in the store. An empty id becomes the *text_id* of its text. A store that *keeps_texts*
    not has that for every id or task that tells of a text, too, and for every source.

    Attributes:
        served: All of them in order, with their keys, ids and the time.
        queries: Those of each query, but for what was forgotten.
        texts: The last text of each document that has one.
        query_vectors: The bytes of base vectors by query and embedder.
        document_vectors: The same of documents.

    Raises:
        InputError: An id, vector or reward is not what was expected; the message names it.
    """

    def __init__(
        self,
        served: Iterable[Served],
        judge: str,
        text_id: Callable[[str], str],
        *,
        keeps_texts: bool = True,
        recorded: bool = True,
    ) -> None:
        self.judge, self.recorded, self._text_id, self._keeps_texts = judge, recorded, text_id, keeps_texts
        self.queries: dict[QueryKey, list[Served]] = defaultdict(list)
        self.texts: dict[DocumentKey, str] = {}
        self.query_vectors: dict[tuple[QueryKey, str], bytes] = {}
        self.document_vectors: dict[tuple[DocumentKey, str], bytes] = {}
        self.served: list[tuple[QueryKey, Served]] = []
        for query in served:
            self._add(self._checked(query))

    def _add(self, served: Served) -> None:
        key, embedder = (served.tenant, served.task, served.query_id), served.embedder
        self.served.append((key, served))
        self.queries[key].append(served)
        if served.vector is not None:
            self.query_vectors[key, embedder] = checked_vector("vector", served.vector)
        for candidate in served.candidates:
            document = served.tenant, candidate.doc_id
            if candidate.text:
                self.texts[document] = candidate.text
            if candidate.vector is not None:
                self.document_vectors[document, embedder] = checked_vector("candidates", candidate.vector)

    def _checked(self, served: Served) -> Served:
        """A served query as it is written."""
        checked_name("tenant", served.tenant, empty=True)
        task, source = checked_name("task", served.task), checked_name("source", served.source, empty=True)
        checked_name("embedder", served.embedder, empty=True)
        at = time.time() if served.at is None else float(served.at)
        if not math.isfinite(at):
            raise InputError(f"at: expected Unix seconds, got {at}")
        if not self._keeps_texts:
            task = self._text_id(task) if _is(task, served.query) else task
            source = source and self._text_id(source)
        if len(served.candidates) > MAX_DEPTH:
            _log.warning("a query was shown %d candidates: the first %d are kept", len(served.candidates), MAX_DEPTH)
        candidates = [self._checked_candidate(candidate) for candidate in served.candidates[:MAX_DEPTH]]
        query_id, query = self._id("query_id", served.query_id, served.query), self._kept(served.query)
        return replace(served, query_id=query_id, candidates=candidates, query=query, task=task, at=at, source=source)

    def _checked_candidate(self, candidate: Candidate) -> Candidate:
        doc_id, text = self._id("doc_id", candidate.doc_id, candidate.text), self._kept(candidate.text)
        if candidate.reward is not None:
            if not self.judge:
                raise InputError("judge: expected the fingerprint of who gave the rewards, got none")
            checked_reward("reward", candidate.reward)
        same = (doc_id, text) == (candidate.doc_id, candidate.text)
        return candidate if same else replace(candidate, doc_id=doc_id, text=text)

    def _id(self, argument: str, name: str, text: str) -> str:
        """The id of a query or document with a *name*, which may be empty where there is a *text*."""
        if not name and text:
            return self._text_id(text)
        checked_name(argument, name)
        return name if self._keeps_texts or not tells(name, text) else self._text_id(name)

    def _kept(self, text: str) -> str:
        return cleaned(text) if self._keeps_texts else ""


def merged(
    servings: Sequence[Served], *, recorded: bool
) -> tuple[dict[str, int], dict[tuple[str, str], tuple[float, bool]]]:
    """The places of one query's candidates; and by candidate and source the rewards, and whether they are silent.

    What was shown last comes before what was shown earlier; a document keeps the place that it had first. Where they
    were *recorded* by the application, `MAX_DEPTH` are kept, else all.
    """
    places: dict[str, int] = {}
    rewards: dict[tuple[str, str], tuple[float, bool]] = {}
    for served in servings:
        shown: dict[str, int] = {}
        for place, candidate in enumerate(served.candidates):
            shown.setdefault(candidate.doc_id, place)
            pair = candidate.doc_id, served.source
            if candidate.reward is not None and not (candidate.silent and pair in rewards):
                rewards[pair] = float(candidate.reward), candidate.silent
        places = dict(islice((shown | places).items(), MAX_DEPTH if recorded else None))
        rewards = {pair: reward for pair, reward in rewards.items() if pair[0] in places}
    return places, rewards


def tells(name: str, text: str) -> bool:
    """Whether an id may be words of somebody, not the opaque id of a program: it has blanks, or holds the text."""
    if not unquote(name).isascii() or len(name.split()) != 1 or _is(name, text):
        return True
    letters = _letters(unquote(name))  # of an address, in which the text may stand
    words = _letters(text, len(letters) + 1)
    return len(words) >= _TELLING and words in letters


def _is(name: str, text: str) -> bool:
    """Whether a name is a text, but for capitals and all that is no letter or digit."""
    letters = _letters(unquote(name))
    return bool(text) and letters == _letters(text, len(letters) + 1)


def _letters(text: str, most: int | None = None) -> str:
    return "".join(islice(filter(str.isalnum, text), most)).casefold()


def with_text_ids(
    rewards: Mapping[QueryKey, Mapping[str, float]], text_id: Callable[[str], str]
) -> dict[QueryKey, Mapping[str, float]]:
    """*rewards* under the names as given and, for those that were texts in a store without texts, their *text_id*."""
    both: dict[QueryKey, Mapping[str, float]] = {}
    for (tenant, task, query), of_query in rewards.items():
        values = {**{text_id(document): value for document, value in of_query.items()}, **of_query}
        names = product((text_id(task), task), (text_id(query), query))
        both |= {(tenant, task_name, name): values for task_name, name in names}
    return both
