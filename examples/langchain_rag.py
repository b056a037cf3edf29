"""A LangChain RAG chain before and after it learned from its users.

python examples/langchain_rag.py                  # offline: a chat model that repeats the first passage
python examples/langchain_rag.py --model NAME     # a real one, by its name in langchain's init_chat_model
"""

from __future__ import annotations

import argparse

from handbook import ASKED, PASSAGES, UNSEEN, MiniLM, Users, helps
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tttembed import RewardCallbackHandler, TTTEmbeddings, stored_vectors

import tttembed_rag
from tttembed_rag import LiveOffsets, Offsets, RewardLog, TextVectors, fit


def chat_model(name: str | None) -> Runnable:
    """The model of that name, or a stand-in that repeats the first passage it was given."""
    if name is None:
        return RunnableLambda(lambda prompt: prompt.to_string().splitlines()[1])
    from langchain.chat_models import init_chat_model

    return init_chat_model(name)


def main() -> None:
    """Serve, learn, serve again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a chat model; needs its key")
    options = parser.parse_args()

    live = LiveOffsets(Offsets([], width=384))
    embeddings = TTTEmbeddings(MiniLM(), offsets=live)  # the one line
    store = InMemoryVectorStore.from_texts(PASSAGES, embeddings)
    retriever = store.as_retriever(search_kwargs={"k": 6})
    passages = retriever | (lambda documents: "\n".join(document.page_content for document in documents))
    prompt = ChatPromptTemplate.from_template("Answer {question} from:\n{passages}")
    chain = {"passages": passages, "question": RunnablePassthrough()} | prompt | chat_model(options.model)

    def report(when: str) -> None:
        first = [retriever.invoke(question)[0].page_content for question in UNSEEN]
        right = sum(helps(question, passage) for question, passage in zip(UNSEEN, first, strict=True))
        print(f"{when}: the first passage helps for {right} of {len(UNSEEN)} questions nobody rated")
        answer = chain.invoke(UNSEEN[0])
        print(f"  {UNSEEN[0]} -> {answer if isinstance(answer, str) else answer.text}")

    judge, vectors = Users(), TextVectors(stored=stored_vectors(store))
    log = RewardLog.of(judge)
    with tttembed_rag.context(task="product"):
        report("before")
        for question in ASKED:
            chain.invoke(question, {"callbacks": [RewardCallbackHandler(log, vectors=vectors)]})
        log.score_waiting(judge)
        live.publish(fit(embeddings.rewards(log, vectors=vectors)))
        print(live.current["local:product"].evidence)
        print(f"vectors from the store: {vectors.supplied}, embedded again: {vectors.embedded}")
        report("after")


if __name__ == "__main__":
    main()
