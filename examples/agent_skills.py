"""Two agents with the same skills learn which of them work in their own office suite.

They never say which suite they work in. Each tells the search which skill it called and whether that worked; what they
are served is learned apart, and only where it is supported. Run it: python examples/agent_skills.py
"""

from pathlib import Path

from tttembed_tools import LearnedToolSearch, cards_of

from tttembed_rag import context

HERE = Path(__file__).resolve().parent / "agent"  # a folder of SKILL.md cards, a file of tool schemas, and tasks
AGENTS = ("northwind", "acme")  # the first works in Microsoft 365, the second in Google Workspace
# Tasks, each with the skill or tool that does it in either suite.
LINES = (HERE / "tasks.tsv").read_text(encoding="utf-8").splitlines()
TASKS = {task: suites for task, *suites in (line.split("\t") for line in LINES)}
REQUESTS = [(f"{s} {task}", task) for s in ("Please", "Can you", "I need you to", "Could somebody") for task in TASKS]
TRIED, UNSEEN = REQUESTS[:30], REQUESTS[30:]
search = LearnedToolSearch(cards_of(HERE / "skills") + cards_of(HERE / "tools.json"))


def hits(suite: int) -> str:
    """How often the first skill that is found works in a suite."""
    found = [search(request, k=1)[0] for request, _ in UNSEEN]
    right = sum(TASKS[task][suite] == skill for skill, (_, task) in zip(found, UNSEEN, strict=True))
    return f"the first skill works for {right} of {len(UNSEEN)} new requests"


for suite, agent in enumerate(AGENTS):
    with context(task=agent):
        print(f"before, {agent}: {hits(suite)}")
        for request, task in TRIED:
            for skill in filter(TASKS[task].__contains__, search(request, k=8)):  # what fits its task, until one works
                search.used(request, skill, works := skill == TASKS[task][suite])
                if works:
                    break
        print(search.learn())
        print(f"after, {agent}: {hits(suite)}")
        print(search.explain(UNSEEN[3][0], k=2))
