"""The common parts of the examples: a handbook of a product with two versions, its users' questions, a small model.

Every topic has a passage for version 1 and one for version 2. The users of these examples run version 2 and never say
so; their feedback does: an answer for version 2 helped, one for version 1 did not.
"""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.embeddings import Embeddings

from tttembed_rag import Scale
from tttembed_rag.embedders import minilm

TOPICS = (
    "reset a password",
    "invite a colleague",
    "export the monthly report",
    "cancel a subscription",
    "change the billing address",
    "connect a calendar",
    "delete an account",
    "upload a large file",
    "share a folder",
    "turn off notifications",
    "restore a backup",
    "download an invoice",
    "rename a project",
    "add a payment card",
    "search old messages",
    "switch the language",
)
PASSAGES = [f"Handbook of version {version}: how to {topic}." for topic in TOPICS for version in (1, 2)]
QUESTIONS = [f"{start} {topic}?" for start in ("How do I", "Where can I", "I want to", "Can I") for topic in TOPICS]
ASKED, UNSEEN = QUESTIONS[:48], QUESTIONS[48:]


class MiniLM(Embeddings):
    """all-MiniLM-L6-v2, each text embedded once; *texts* at the start."""

    def __init__(self, texts: Sequence[str] = (*PASSAGES, *QUESTIONS)) -> None:
        self._model = minilm()
        self._vectors = dict(zip(texts, self._model.embed_documents(texts).tolist(), strict=True))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Their vectors."""
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Its vector."""
        if text not in self._vectors:
            self._vectors[text] = self._model.embed_queries([text])[0].tolist()
        return self._vectors[text]


class Users:
    """The users' thumbs as a judge: up for an answer to their question in their version."""

    fingerprint = "users"
    scale = Scale("probability")

    def score(self, query: str, documents: list[str]) -> list[float]:
        """1 for a passage that helped, 0 for one that did not."""
        return [float(helps(query, text)) for text in documents]


def helps(question: str, passage: str) -> bool:
    """Whether the passage answers the question for version 2."""
    return "version 2" in passage and any(topic in question and topic in passage for topic in TOPICS)


def grade(prompt: str) -> str:
    """The verdict of a stand-in for a chat model that was asked to grade a passage: 5 where it helps, else 0."""
    question = next((question for question in ASKED if question in prompt), "")
    passage = next((passage for passage in PASSAGES if passage in prompt), "")
    return f"Score: {5 if helps(question, passage) else 0}"
