"""Two agents with the same skills learn which skills work in their own office suite.

A folder of SKILL.md cards and a list of tool schemas become one retriever. The agents never say which office suite
they work in, yet only the skills of that suite succeed. Every task they try comes back as a reward, each agent has an
offset of its own, and the cards stay as they are.

python examples/agent_skills.py                  # offline: the right skill of the agent's suite succeeds
python examples/agent_skills.py --model NAME     # a chat model says so, by its name in langchain's init_chat_model
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path

import yaml
from handbook import MiniLM
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tttembed import TTTEmbeddings, chat_judge, stored_vectors

import tttembed_rag
from tttembed_rag import LiveOffsets, Offsets, Scale, fit
from tttembed_rag.capture import RewardLog, TextVectors
from tttembed_rag.judges import Judge, rewards_of

HERE = Path(__file__).resolve().parent / "agent"
SUITES = ("Microsoft 365", "Google Workspace")
AGENTS = dict(zip(("northwind", "acme"), SUITES, strict=True))
# Tasks, each with the skill or tool that does it in each suite.
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
REQUESTS = [f"{start} {task}" for start in ("Please", "Can you", "I need you to", "Could somebody") for task in TASKS]
TRIED, UNSEEN = REQUESTS[:30], REQUESTS[30:]


def cards(skills: Path, tools: Path) -> Iterator[str]:
    """The text to embed of every skill of a folder and every tool of a file."""
    for file in sorted(skills.glob("*/SKILL.md")):
        head = yaml.safe_load(file.read_text("utf-8").split("---")[1])
        yield f"{head['name']}: {head['description']}"
    for schema in json.loads(tools.read_text("utf-8")):
        tool = schema["function"]
        yield f"{tool['name']}: {tool['description']}"


class Outcomes:
    """A judge by success: a task succeeds with the right skill of the right suite, and with no other."""

    fingerprint = "task success"
    scale = Scale("probability")

    def score(self, query: str, documents: list[str]) -> list[float]:
        """1 for a skill that did the task, 0 for one that did not."""
        request, suite = query.rsplit(", with ", 1)
        right = next(names[SUITES.index(suite)] for task, names in TASKS.items() if request.endswith(task))
        return [float(text.startswith(f"{right}: ")) for text in documents]

    async def ascore(self, query: str, documents: list[str]) -> list[float]:
        """The same."""
        return self.score(query, documents)


def outcome_judge(name: str | None) -> Judge:
    """The chat model of that name, or the outcomes themselves."""
    if name is None:
        return Outcomes()
    from langchain.chat_models import init_chat_model

    return chat_judge(init_chat_model(name), name=name, instruction="The tool does the task, in the named suite")


def main() -> None:
    """Work, learn, work again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a chat model; needs its key")
    judge = outcome_judge(parser.parse_args().model)

    live = LiveOffsets(Offsets([], width=384))
    skills = list(cards(HERE / "skills", HERE / "tools.json"))
    embeddings = TTTEmbeddings(MiniLM([*skills, *REQUESTS]), offsets=live)
    store = InMemoryVectorStore.from_texts(skills, embeddings)
    retriever = store.as_retriever(search_kwargs={"k": 8})
    vectors, log = TextVectors(stored=stored_vectors(store)), RewardLog(judge.fingerprint)

    def works(agent: str, request: str, skill: str) -> float:
        [reward] = rewards_of(judge, judge.score(f"{request}, with {AGENTS[agent]}", [skill])).tolist()
        return 0.0 if math.isnan(reward) else reward

    def report(when: str) -> None:
        for agent in AGENTS:
            with tttembed_rag.scope(agent):
                first = [(request, retriever.invoke(request)[0].page_content) for request in UNSEEN]
            right = sum(works(agent, request, skill) > 0.7 for request, skill in first)
            print(f"{when}, {agent}: the first skill works for {right} of {len(UNSEEN)} new requests")
            print(f"  {UNSEEN[3]} -> {first[3][1].split(':')[0]}")

    report("before")
    for agent in AGENTS:
        for request in TRIED:
            with tttembed_rag.scope(agent):
                found = [one.page_content for one in retriever.invoke(request)]
            # Every skill is tried: where an agent stops at its first success, failures stand above it by their rank
            # alone, and the gate refuses such rewards.
            log.record(request, found, [works(agent, request, skill) for skill in found], task=agent)
    live.publish(fit(embeddings.rewards(log, vectors=vectors)))
    for agent in AGENTS:
        print(f"{agent}: {live.current[f'task:{agent}'].evidence.reason}")
    report("after")


if __name__ == "__main__":
    main()
