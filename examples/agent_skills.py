"""Two agents with the same skills learn which of them work in their own office suite.

They never say which suite they work in. Each tells the search which skill it called and whether that worked; what they
are served is learned apart, and only where it is supported. Run it: python examples/agent_skills.py
"""

from pathlib import Path

from tttembed_tools import LearnedToolSearch, cards_of

HERE = Path(__file__).resolve().parent / "agent"  # a folder of SKILL.md cards, a file of tool schemas, and tasks
AGENTS = ("northwind", "acme")  # the first works in Microsoft 365, the second in Google Workspace
# Tasks, each with the skill or tool that does it in either suite.
LINES = (HERE / "tasks.tsv").read_text(encoding="utf-8").splitlines()
TASKS = {task: suites for task, *suites in (line.split("\t") for line in LINES)}
REQUESTS = [(f"{s} {task}", task) for s in ("Please", "Can you", "I need you to", "Could somebody") for task in TASKS]
TRIED, UNSEEN = REQUESTS[:30], REQUESTS[30:]
search = LearnedToolSearch(cards_of(HERE / "skills") + cards_of(HERE / "tools.json"))


def report(when: str) -> None:
    """Print how often each agent finds a skill that works in its suite."""
    for suite, agent in enumerate(AGENTS):
        found = [search(request, k=1, task=agent)[0] for request, _ in UNSEEN]
        right = sum(TASKS[task][suite] == skill for skill, (_, task) in zip(found, UNSEEN, strict=True))
        print(f"{when}, {agent}: the first skill works for {right} of {len(UNSEEN)} new requests")


report("before")
for suite, agent in enumerate(AGENTS):
    for request, task in TRIED:
        for skill in search(request, k=8, task=agent):
            if skill in TASKS[task]:  # the agent calls what fits its task, until one works
                search.used(request, skill, works := skill == TASKS[task][suite], task=agent)
                if works:
                    break
print(search.learn())
report("after")
print(search.explain(UNSEEN[3][0], k=2, task="acme"))
