"""The notebooks run from their first cell to their last, show that something was learned, and draw a picture each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    """Its cells of code run one after another, beside its data; what they find is better after learning."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    script = tmp_path / "cells.py"
    script.write_text(f"{code}\nprint('pictures:', len(plt.get_fignums()))\n", encoding="utf-8")
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", script]

    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=notebook.parent)

    assert done.returncode == 0, done.stderr
    before, after = (int(count) for count in re.findall(r"helps for (\d+) of \d+", done.stdout))
    assert after > before
    assert "pictures: 1" in done.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_its_outputs(notebook: Path) -> None:
    """Outputs would grow old; whoever runs it sees those of their own version."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]

    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
