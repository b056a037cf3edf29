"""An LLM judge collects rewards while the application serves, under a budget; the learned offsets are published.

python examples/llm_judge_feedback.py                # offline: a stand-in that reads which version a passage is for
python examples/llm_judge_feedback.py --model NAME   # a real judge, by its name in langchain's init_chat_model
"""

from __future__ import annotations

import argparse
from threading import Thread

from handbook import ASKED, PASSAGES, UNSEEN, MiniLM, grade, helps
from langchain_core.language_models import BaseChatModel, SimpleChatModel
from langchain_core.messages import BaseMessage
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tttembed import RewardCallbackHandler, TTTEmbeddings, chat_judge

from tttembed_rag import LiveOffsets, Offsets, RewardLog, fit
from tttembed_rag.judging import Budget

INSTRUCTION = "The passage answers the question for a user of version 2"


class Reader(SimpleChatModel):
    """Stands in for a chat model: grades a passage of version 2 on the asked topic 5, any other 0."""

    @property
    def _llm_type(self) -> str:
        return "reader"

    def _call(self, messages: list[BaseMessage], *_: object, **__: object) -> str:
        return grade(str(messages[-1].content))


def chat_model(name: str | None) -> BaseChatModel:
    """The model of that name, or the stand-in."""
    if name is None:
        return Reader()
    from langchain.chat_models import init_chat_model

    return init_chat_model(name)


def main() -> None:
    """Serve while a thread judges, then learn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a chat model; needs its key")
    parser.add_argument("--pairs", type=int, default=240, help="pairs of question and passage the judge may be asked")
    options = parser.parse_args()

    judge = chat_judge(chat_model(options.model), name=options.model or "reader", instruction=INSTRUCTION)
    live, log = LiveOffsets(Offsets([], width=384)), RewardLog.of(judge)
    embeddings = TTTEmbeddings(MiniLM(), offsets=live, task="product")
    retriever = InMemoryVectorStore.from_texts(PASSAGES, embeddings).as_retriever(search_kwargs={"k": 5})

    def right() -> int:
        return sum(helps(question, retriever.invoke(question)[0].page_content) for question in UNSEEN)

    print(f"before: the first passage helps for {right()} of {len(UNSEEN)} questions nobody judged")
    handler = RewardCallbackHandler(log, task="product")
    worker = None
    for place, question in enumerate(ASKED, 1):
        retriever.invoke(question, {"callbacks": [handler]})
        if place == len(ASKED) // 2:  # the judge works on the first half while the second is served
            budget = Budget(pairs=options.pairs // 2)
            worker = Thread(target=log.score_waiting, args=(judge,), kwargs={"budget": budget})
            worker.start()
    if worker is not None:
        worker.join()
    print(f"judged while serving; {log.waiting} pairs wait")
    log.score_waiting(judge, budget=Budget(pairs=options.pairs // 2))
    live.publish(fit(embeddings.rewards(log)))
    print(live.current["local:product"].evidence)
    print(f"after: the first passage helps for {right()} of {len(UNSEEN)} questions nobody judged")


if __name__ == "__main__":
    main()
