"""A LlamaIndex query engine before and after it learned from its users.

python examples/llama_index_rag.py                 # offline: LlamaIndex's mock LLM
python examples/llama_index_rag.py --openai NAME   # OpenAI's, with llama-index-llms-openai and its key
"""

from __future__ import annotations

import argparse

from handbook import ASKED, PASSAGES, UNSEEN, MiniLM, Users, helps
from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.llms import LLM, MockLLM
from llama_index.core.schema import TextNode
from llama_index.embeddings.tttembed import TTTEmbedding, stored_vectors
from llama_index.postprocessor.tttembed import RewardPostprocessor

import tttembed_rag
from tttembed_rag import LiveOffsets, Offsets, RewardLog, TextVectors, fit

MODEL = MiniLM()


class MiniLMEmbedding(BaseEmbedding):
    """all-MiniLM-L6-v2 for LlamaIndex."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return MODEL.embed_query(text)

    def _get_query_embedding(self, query: str) -> list[float]:
        return MODEL.embed_query(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return MODEL.embed_query(query)


def language_model(name: str | None) -> LLM:
    """OpenAI's of that name, or LlamaIndex's mock."""
    if name is None:
        return MockLLM(max_tokens=8)
    from llama_index.llms.openai import OpenAI

    return OpenAI(model=name)


def main() -> None:
    """Serve, learn, serve again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--openai", help="a model; needs its key")
    options = parser.parse_args()

    live = LiveOffsets(Offsets([], width=384))
    embed_model = TTTEmbedding(MiniLMEmbedding(), offsets=live)  # the one line
    index = VectorStoreIndex([TextNode(text=text) for text in PASSAGES], embed_model=embed_model)
    judge, vectors = Users(), TextVectors(stored=stored_vectors(index))
    log = RewardLog.of(judge)
    engine = index.as_query_engine(
        llm=language_model(options.openai),
        similarity_top_k=6,
        node_postprocessors=[RewardPostprocessor(log, vectors=vectors)],
    )

    def report(when: str) -> None:
        retriever = index.as_retriever(similarity_top_k=1)
        right = sum(helps(question, retriever.retrieve(question)[0].text) for question in UNSEEN)
        print(f"{when}: the first passage helps for {right} of {len(UNSEEN)} questions nobody rated")

    with tttembed_rag.context(task="product"):
        report("before")
        for question in ASKED:
            engine.query(question)
        log.score_waiting(judge)
        live.publish(fit(embed_model.rewards(log, vectors=vectors)))
        print(live.current["local:product"].evidence)
        print(f"vectors from the index: {vectors.supplied}, embedded again: {vectors.embedded}")
        report("after")


if __name__ == "__main__":
    main()
