"""sentence-transformers: a module with offsets that travels inside a saved model.

    model.append(TTTOffsets(offsets, task="billing"))      # the last module, after any Normalize
    model.encode_query("how do I get a refund?")            # with its offset
    model.save_pretrained("steered")
    model = load_steered("steered")

`encode_query` says its role and is steered; `encode_document` is not, and neither is plain `encode`, which says none: a
program that embeds queries with `encode` is served base vectors. Since version 6 the library loads a class of another
package only with ``trust_remote_code=True``, or where it is handed the class, which is what `load_steered` does.
Servers that do not run the Python modules of a model (text-embeddings-inference) ignore the offsets or refuse the
model.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Self

from tttembed_hosts.extras import require
from tttembed_rag import InputError, Offsets, Steering
from tttembed_rag.errors import DataError

require("sentence_transformers", "sentence-transformers")
import torch  # noqa: E402
from sentence_transformers import SentenceTransformer  # noqa: E402
from sentence_transformers.base.modules.module import Module  # noqa: E402

__all__ = ["TTTOffsets", "load_steered"]

_FILE = "offsets.safetensors"


class TTTOffsets(Module):
    """A module that adds offsets to the vectors of queries; it belongs at the end of a model.

    A query has no text any more where it stands: private offsets are found by the caller's
    ``with context(..., query_id=...)`` alone.

    Args:
        offsets: What was learned; saved with the model.
        task: The task of every query; None is the caller's ``with context(...)``. Saved too.

    Raises:
        InputError: *offsets* are something else.
    """

    config_keys = ["task"]  # noqa: RUF012 - the library's own way to say it
    forward_kwargs = {"task"}  # noqa: RUF012 - the same

    def __init__(self, offsets: Offsets, *, task: str | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if not isinstance(offsets, Offsets):  # live ones could not be saved with the model
            raise InputError(f"offsets: expected tttembed_rag Offsets, got {type(offsets).__name__}")
        self.offsets = offsets
        self.task = task
        self._steering = Steering(offsets, task)

    def forward(self, features: dict[str, Any], task: str | None = None, **_: Any) -> dict[str, Any]:
        """The features; with offsets in ``sentence_embedding`` where the *task* is ``query``."""
        if task != "query":
            return features
        base = features["sentence_embedding"]
        rows = base.detach().to("cpu", torch.float32).numpy()
        steered = base.clone()
        for number, row in enumerate(rows):
            if (turned := self._steering.apply(row, "")) != row.tolist():
                steered[number] = torch.tensor(turned, dtype=torch.float64).to(base)
        return features | {"sentence_embedding": steered}

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:  # noqa: ARG002
        """Write the offsets and the task into a folder of the model."""
        self.save_config(output_path)
        self.offsets.save(Path(output_path) / _FILE)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,  # noqa: ARG003 - the library's signature
        **kwargs: Any,  # noqa: ARG003
    ) -> Self:
        """The module that `save` wrote, from a folder or the Hub.

        Raises:
            DataError: There are no offsets.
        """
        find = partial(
            cls.load_file_path,
            model_name_or_path,
            subfolder=subfolder,
            token=token,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
        )
        paths = [find(filename=name) for name in (_FILE, cls.config_file_name)]
        if paths[0] is None or paths[1] is None:
            raise DataError(f"{model_name_or_path}: expected {_FILE} and {cls.config_file_name} in {subfolder!r}")
        config = json.loads(Path(paths[1]).read_text(encoding="utf-8"))
        return cls(Offsets.load(paths[0]), task=config.get("task"))


def load_steered(path: str, **options: Any) -> SentenceTransformer:
    """The model at *path* with the offsets in it, without trusting any code of the model's.

    Args:
        path: A folder, or a name on the Hub.
        options: Of ``SentenceTransformer``, handed on.
    """
    known = {f"{TTTOffsets.__module__}.{TTTOffsets.__qualname__}": TTTOffsets}
    # The library's trainer loads its checkpoints in this way; there is no public one.
    model: SentenceTransformer = SentenceTransformer._load_with_module_classes(path, known, **options)  # noqa: SLF001
    return model
