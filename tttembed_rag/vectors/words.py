"""Words of texts: how they are cut, and the BM25 index of a collection."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from tttembed_rag.errors import require

# One word of a text; scripts without spaces between words are cut into characters.
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\\W_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def words(text: str) -> list[str]:
    """The words of a text in lower case; `readCSVFile` and `read_csv` are several words."""
    return _WORD.findall(unicodedata.normalize("NFKC", _CAMEL.sub(" ", text)).casefold())


def keyword_index(texts: Sequence[list[str]], extra: str) -> Any:
    """The BM25 index of texts that were cut into words; None where there is no word at all.

    Raises:
        MissingExtraError: bm25s is not installed; *extra* brings it.
    """
    if not any(texts):
        return None
    logger = logging.getLogger("bm25s")
    level = logger.level
    bm25s = require("bm25s", extra)
    logger.setLevel(level)  # importing it sets DEBUG, and the application would see its messages
    ranker = bm25s.BM25(k1=1.5, b=0.75)
    ranker.index(list(texts), show_progress=False)
    return ranker
