"""A log of served queries, feedback on them, and the scores that a judge gave, as text files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tttembed_rag.clients.options import Options
from tttembed_rag.judging.plan import Plan, Progress, Verdicts, verdicts_of
from tttembed_rag.rewards.events import Feedback
from tttembed_rag.rewards.rows import read_events
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.system.files import PUBLIC, write_whole


def read_feedback(spec: str, plan: Plan, *, queries: Mapping[str, str], documents: Mapping[str, str]) -> Verdicts:
    """The scores that a file of feedback holds for the pairs of *plan*; *queries* and *documents* are texts by id.

    *spec* is ``feedback:FILE``, or ``feedback:FILE?scale=rubric:0,3`` for grades of judgments.

    Raises:
        DataError: Not such a file, or one about other queries and documents.
    """
    options = Options("judge", spec)
    scale = options.take("scale", "")
    options.check_all_used()
    events, declared = list(read_events(Path(options.target))), Scale.parse(scale) if scale else None
    feedback = Feedback.of(events, scale=declared)
    scores = feedback.by_text(queries, documents)
    pairs = [
        (served.query_id, candidate.doc_id, scores.get((served.query, candidate.text)))
        for served, candidates in plan.visits()
        for candidate in candidates
    ]
    return verdicts_of(feedback.scale, pairs, Progress(len(pairs)))


def write_scores(path: Path, verdicts: Verdicts) -> None:
    """Write rewards in [0, 1] to *path* as query-id, corpus-id, score with a header line, all or nothing."""
    lines = ["query-id\tcorpus-id\tscore\n"]
    for query, rewards in verdicts.rewards.items():
        lines += [f"{query}\t{document}\t{reward:.9g}\n" for document, reward in rewards.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(lines).encode(), mode=PUBLIC)
