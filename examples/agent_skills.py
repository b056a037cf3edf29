"""Two agents with the same skills learn which of them work in their own office suite.

A folder of SKILL.md cards and a file of tool schemas are one catalogue. The agents never say which office suite they
work in, yet only the skills of that suite succeed. Each agent tells the search which skill it called and whether that
worked; what they are served was learned apart, and only where it is supported.

python examples/agent_skills.py
"""

from pathlib import Path

from tttembed_rag.tools import LearnedToolSearch, cards_of

HERE = Path(__file__).resolve().parent / "agent"
AGENTS = ("northwind", "acme")  # the first works in Microsoft 365, the second in Google Workspace
# Tasks, each with the skill or tool that does it in either suite.
TASKS = {
    "write a letter to the landlord": ("word", "google-docs"),
    "add a row to the budget table": ("excel", "google-sheets"),
    "prepare a talk about last quarter": ("powerpoint", "google-slides"),
    "answer the message of the new customer": ("outlook-mail", "gmail"),
    "find a time for lunch with the team": ("outlook-calendar", "google-calendar"),
    "put the contract where all of us can open it": ("onedrive_upload", "google_drive_upload"),
    "tell the channel that the release is out": ("teams_post", "google_chat_post"),
    "start a video call with the supplier": ("teams_meeting_create", "google_meet_create"),
    "ask everybody how the workshop was": ("microsoft_forms_create", "google_forms_create"),
    "remind me to renew the insurance": ("microsoft_to_do_add", "google_tasks_add"),
}
REQUESTS = [(f"{s} {task}", task) for s in ("Please", "Can you", "I need you to", "Could somebody") for task in TASKS]
TRIED, UNSEEN = REQUESTS[:30], REQUESTS[30:]

search = LearnedToolSearch(cards_of(HERE / "skills") + cards_of(HERE / "tools.json"))


def report(when: str) -> None:
    """Print how often each agent finds a skill that works in its suite."""
    for suite, agent in enumerate(AGENTS):
        first = [search(request, k=1, task=agent)[0] for request, _ in UNSEEN]
        right = sum(TASKS[task][suite] == skill for skill, (_, task) in zip(first, UNSEEN, strict=True))
        print(f"{when}, {agent}: the first skill works for {right} of {len(UNSEEN)} new requests")
        print(f"  {UNSEEN[3][0]} -> {first[3]}")


report("before")
for suite, agent in enumerate(AGENTS):
    for request, task in TRIED:
        for skill in search(request, k=8, task=agent):
            if skill in TASKS[task]:  # the agent calls what fits its task, until one works
                search.used(request, skill, skill == TASKS[task][suite], task=agent)
                if skill == TASKS[task][suite]:
                    break
print(search.learn())
report("after")
print(search.explain(UNSEEN[3][0], k=2, task="acme"))
