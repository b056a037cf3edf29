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
    "tutorials/own-data.md": "from a CSV of votes or a log of searches to offsets and a report",
    "tutorials/langchain.md": "Learned, TTTEmbeddings and RecordingCrossEncoder around an application that exists",
    "tutorials/llama-index.md": "Learned, TTTEmbedding and RewardPostprocessor around a query engine that exists",
    "memory.md": "LearnedRecall for the memories of an agent's users; LangGraph, deepagents",
    "tools.md": "LearnedToolSearch for agents with many tools, skills or MCP servers",
    "how-to/choose-a-judge.md": "every judge by its spec, prices, budgets, batches, a judge of your own",
    "how-to/words.md": "BM25 beside vectors: weights learned from the same verdicts sort what a search found",
    "how-to/nothing-fits.md": "how likely a candidate is relevant, and a certified floor: an empty list instead",
    "how-to/languages.md": "a task per language, a start from means of stored vectors, words of any script",
    "how-to/read-the-evidence.md": "each word of a line of `tttembed show`; audits by labels of a person",
    "how-to/rerank-less.md": "how deep a reranker must look, and which requests need none, both certified",
    "how-to/sources.md": "name the source of a vote, what votes do; delete a query, a source or a tenant",
    "how-to/production.md": "store, log, worker, follow; guards, tenants, upgrade, watching",
    "how-to/hosts.md": "a line of use for each: Pydantic AI, LanceDB, Chroma, sentence-transformers, DSPy and others",
    "how-to/http.md": "`tttembed serve`: steer queries, take votes and search tools for clients in any language",
    "reference/measure.md": "`tttembed eval` on folders with labels, collections by name, mteb",
    "how-to/bridge.md": "embed anew, or bridge a new model into the old index",
    "reference/beyond-one-machine.md": "judging by batch services, the worker under cron, Kubernetes or Celery",
    "reference/gate.md": "the questions that an offset is asked, with their tests",
    "reference/numbers.md": "gain and harm on nine collections, each with its command",
    "reference/rivals.md": "offsets beside adapters, caches, completed matrices and methods that move documents",
    "verdicts/index.md": "the codes of abstentions",
    "reference/glossary.md": "one word for one thing: judge, verdict, offset, gate, task; scope, dose, landmark",
    "reference/api.md": "public names of Python, with their first sentences",
    "reference/cli.md": "the help of every command",
    "reference/files.md": "formats of offsets, rewards, logs and feedback",
    "reference/schema.md": "tables and columns of a store",
    "reference/versions.md": "what a patch and a minor version may change",
    "reference/clients.md": "code for Elasticsearch, OpenSearch, pgvector, Vercel AI SDK, Spring AI, LangChain4j",
    "reference/mcp.md": "`tttembed tools serve` before other servers, and an MCP client in Python",
    "reference/traces.md": "capture from spans; Phoenix, Langfuse, LangSmith; judgments of Quepid, OpenSearch, TREC",
    "reference/parquet.md": "rewards as Parquet, a fit over shards, on one machine or a Ray cluster",
    "reference/testing.md": "fakes of judge, model, log and clock for your own tests",
    "reference/words.md": "sorting by words, a tuned hybrid search and languages, measured",
    "reference/figures.md": "search over tools and memories beside their rivals, by the number of requests",
    "reference/reranking.md": "how depths are certified; depth, cascade and order of judging, measured",
    "reference/speed.md": "the fit, requests, the proxy, judging on a GPU, a million queries",
}


def sections() -> dict[str, list[tuple[str, str]]]:
    """(title, page) of the pages of the site, by section; pages without one stand in "Start"."""
    site: dict[str, Any] = tomllib.loads((HERE.parent / "zensical.toml").read_text(encoding="utf-8"))
    by_section = dict[str, list[tuple[str, str]]]()
    for entry in site["project"]["nav"]:
        ((title, inside),) = entry.items()
        pages = [(title, inside)] if isinstance(inside, str) else [pair for entry in inside for pair in entry.items()]
        by_section.setdefault("Start" if isinstance(inside, str) else title, []).extend(pages)
    return by_section


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
