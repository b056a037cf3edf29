"""Skills found by their descriptions alone, and by their bodies too: hit@1 and recall@5 before any outcome.

    python benchmarks/skills.py

The skills and the requests are made up for this measurement, by the authors of the search: real ones would be another's
text. Descriptions say what a skill is for, as those of public skills do; requests name what its body is about.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tttembed_tools import LearnedToolSearch

from tttembed_rag.embedders import minilm

# Name, description, body with its paragraphs divided by |, requests divided by |.
SKILLS = Path(__file__).with_suffix(".tsv")


def main() -> None:
    """Search by both, and print."""
    rows = [line.split("\t") for line in SKILLS.read_text(encoding="utf-8").splitlines()]
    model = minilm(max_tokens=256)
    print(f"{'':<28}{'hit@1':>8}{'recall@5':>10}")
    for by_body in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            requests = []
            for name, description, body, asked in rows:
                requests += [(request, name) for request in asked.split("|")]
                file = Path(folder) / name / "SKILL.md"
                file.parent.mkdir()
                text = body.replace("|", "\n\n") if by_body else ""
                file.write_text(f"---\nname: {name}\ndescription: {description}\n---\n{text}\n", encoding="utf-8")
            search = LearnedToolSearch(folder, model)
            found = [(search(request, k=5), name) for request, name in requests]
        first, five = (sum(name in names[:k] for names, name in found) / len(found) for k in (1, 5))
        print(f"{'name, description, body' if by_body else 'name and description':<28}{first:>8.3f}{five:>10.3f}")
    print(f"{len(rows)} skills, {len(found)} requests")


if __name__ == "__main__":
    main()
