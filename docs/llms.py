"""Writes llms.txt, a line a page for language models, or llms-full.txt, all pages in one, into a folder that is named.

python docs/llms.py               # docs/llms.txt; a test compares what is there with what this would write
python docs/llms.py build/site    # `make docs` does it
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SITE = "Verdicts of a reranker or judge, kept as small vectors that turn query vectors; published only on evidence."
# What a page answers, in the order of the site.
ABOUT = {
    "index.md": "which page to read for what you have",
    "install.md": "from a clone, with sizes of extras and torch without CUDA",
    "how-it-works.md": "a request's way through the pieces, why it abstains, scopes, the equations",
    "compare.md": "rerankers, adapters, fine-tuning, caches, feedback of vendors; where this package loses",
    "faq.md": "short answers: is it for me, how it fits in, what I see",
    "glossary.md": "one word for one thing: offset, scope, task, dose, landmark, verdict",
    "tutorials/own-data.md": "from a CSV of votes or a log of searches to offsets and a report",
    "tutorials/langchain.md": "TTTEmbeddings and RecordingCrossEncoder around an application that exists",
    "tutorials/llama-index.md": "TTTEmbedding and RewardPostprocessor around a query engine that exists",
    "memory.md": "LearnedRecall for the memories of an agent's users; LangGraph, deepagents; its measured rivals",
    "tools.md": "LearnedToolSearch for agents with many tools or MCP servers; its measured rivals",
    "how-to/choose-a-judge.md": "every judge by its spec, prices, budgets, batches, a judge of your own",
    "how-to/words.md": "BM25 beside vectors: weights learned from the same verdicts sort what a search found",
    "how-to/languages.md": "a task per language, a start from means of stored vectors, words of any script",
    "how-to/read-the-evidence.md": "each word of a line of `tttembed show`; audits by labels of a person",
    "how-to/rerank-less.md": "which requests need no reranker, and how deep it must look in others, both certified",
    "how-to/sources.md": "votes of users: name the source, what is kept, what it does",
    "how-to/production.md": "store, log, worker, follow; guards, tenants, upgrade, watching",
    "how-to/forget.md": "delete a query, a source or a tenant with all that was learned from it",
    "how-to/hosts.md": "spans, Phoenix, Pydantic AI, LanceDB, Chroma, sentence-transformers, DSPy, vectors of stores",
    "how-to/proxy.md": "`tttembed serve`: steer queries of clients in any language by HTTP",
    "how-to/any-language.md": "feedback and search over tools by HTTP: curl, Vercel AI SDK, Spring AI, LangChain4j",
    "how-to/search-engines.md": "engines that embed by themselves, and offsets as a function in PostgreSQL",
    "how-to/testing.md": "fakes of judge, model, log and clock for your own tests",
    "how-to/measure.md": "`tttembed eval` on folders with labels, collections by name, mteb",
    "how-to/upgrade-the-embedding-model.md": "keep verdicts, embed anew, learn for the new model",
    "how-to/beyond-one-machine.md": "batch services, Parquet, Celery and other schedulers",
    "scale.md": "a fit over shards of Parquet, on one machine or a Ray cluster",
    "explain/gate.md": "the questions that an offset is asked, with their tests",
    "explain/numbers.md": "gain and harm on nine collections, each with its command",
    "explain/speed.md": "the fit against the paper's recipe, and what a request costs",
    "verdicts/index.md": "the codes of abstentions",
    "reference/api.md": "public names of Python, with their first sentences",
    "reference/cli.md": "the help of every command",
    "reference/files.md": "formats of offsets, rewards, logs and feedback",
    "reference/schema.md": "tables and columns of a store",
    "reference/versions.md": "what a patch and a minor version may change",
}


def sections() -> dict[str, list[tuple[str, str]]]:
    """(title, page) of the pages of the site, by section; pages without one stand in "Start"."""
    site: dict[str, Any] = tomllib.loads((HERE.parent / "zensical.toml").read_text(encoding="utf-8"))
    found = dict[str, list[tuple[str, str]]]()
    for entry in site["project"]["nav"]:
        ((title, inside),) = entry.items()
        pages = [(title, inside)] if isinstance(inside, str) else [pair for entry in inside for pair in entry.items()]
        found.setdefault("Start" if isinstance(inside, str) else title, []).extend(pages)
    return found


def listing() -> str:
    """The text of llms.txt."""
    lines = ["# tttembed-rag", "", f"> {SITE}"]
    for section, pages in sections().items():
        lines += ["", f"## {section}", "", *(f"- [{title}]({page}): {ABOUT[page]}" for title, page in pages)]
    return "\n".join([*lines, ""])


def whole() -> Iterator[str]:
    """All pages, in the order of the site, each behind a line with its path; single verdicts at the end."""
    pages = [page for inside in sections().values() for _, page in inside]
    singles = sorted(str(path.relative_to(HERE)) for path in HERE.glob("verdicts/TTT-*.md"))
    for page in (*pages, *singles):
        yield f"<!-- {page} -->\n\n{(HERE / page).read_text(encoding='utf-8')}"


if __name__ == "__main__":
    if folders := sys.argv[1:]:
        (Path(folders[0]) / "llms-full.txt").write_text("\n".join(whole()), encoding="utf-8")
    else:
        (HERE / "llms.txt").write_text(listing(), encoding="utf-8")
