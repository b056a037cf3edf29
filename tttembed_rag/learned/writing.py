"""Questions made of documents, where nobody has asked any yet: by a chat model, or titles and headings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from tttembed_rag.errors import InputError, check_count
from tttembed_rag.judges.specs import open_chat
from tttembed_rag.system.progress import watched
from tttembed_rag.vectors.bm25 import words

# Words of a document that a writer must not use: so many, the rarest in all documents, and none shorter.
_FORBIDDEN, _LETTERS = 6, 4
# Characters of the longest line that is taken for a title.
_TITLE = 120
_PROMPT = """Write one question that somebody would ask who has never seen the text below, and that it answers.
Write it in the language of the text, in other words than the text's own. Do not use any of these words: {words}.
Answer with the question alone.

Text: {text}"""


def written_questions(texts: Sequence[str], n: int, writer: Callable[[str], str | None] | str | None) -> list[str]:
    """At most *n* different questions, one of each of so many *texts*, spread over all of them.

    The *writer* is a function from prompt to answer, or the spec of a chat model; None takes titles and headings. An
    answer with a forbidden word is left out.

    Raises:
        InputError: *n* is below 1, or *texts* give no question.
    """
    check_count("n", n)
    some = list(texts[:: max(1, len(texts) // n)][:n])
    if writer is None:
        questions = list(map(_title, some))
    else:
        chat = open_chat(writer) if isinstance(writer, str) else writer
        having = Counter(word for text in texts for word in set(words(text)))
        questions = [_question(text, having, chat) for text in watched(some, len(some), "write")]
    if not (different := list(dict.fromkeys(filter(None, questions)))):
        raise InputError(f"texts: expected some that give questions, got none of {len(texts)}")
    return different


def _question(text: str, having: Counter[str], chat: Callable[[str], str | None]) -> str:
    """The question that *chat* writes about *text*, whose words so many texts are *having*; empty for one left out."""
    rarest = sorted((having[word], word) for word in set(words(text)) if len(word) >= _LETTERS)
    forbidden = [word for _, word in rarest[:_FORBIDDEN]]
    answer = (chat(_PROMPT.format(words=", ".join(forbidden), text=text)) or "").strip()
    return "" if set(words(answer)) & set(forbidden) else answer


def _title(text: str) -> str:
    """The heading of a document, its first line if that is short, else its first sentence."""
    first = text.strip().partition("\n")[0].lstrip("# ")
    return first if len(first) <= _TITLE else re.split(r"(?<=[.!?。])\s", first)[0][:_TITLE]
