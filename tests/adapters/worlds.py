"""The vectors, offsets and judges in which the laws of all adapters are told."""

from hashlib import sha256

import numpy as np

from tttembed_rag import Evidence, Offset, Offsets
from tttembed_rag.offsets.rescorer import Rescorer, Vocabulary
from tttembed_rag.testing import FakeEmbedder, FakeJudge

WIDTH = 12
TEXTS = [f"passage {i}" for i in range(60)]
PAGES = ["wash wool cold", "boil the kettle", "river past the mill"]
UNGATED = Evidence(4, None, None, "ungated", "made for a test")


def drawn(text, width=WIDTH):
    """A vector drawn from a text's hash, of a norm around sqrt(width)."""
    seed = int.from_bytes(sha256(text.encode()).digest()[:8])
    return np.random.default_rng(seed).normal(size=width).tolist()


MEANT = np.array(drawn("what every question means"))
QUERY = (MEANT + 2.5 * np.array(drawn("how it is put"))).tolist()


class Vectors:
    """What a model embeds, and how many documents it has embedded.

    Args:
        query: The vector of every query; None draws one from its text.
        documents: The vectors of documents by text; None draws them.
    """

    def __init__(self, query=None, documents=None):
        self.embedded, self._query, self._documents = 0, query, documents

    def query(self, text):
        return drawn(f"query: {text}") if self._query is None else self._query

    def document(self, text):
        self.embedded += 1
        return drawn(text) if self._documents is None else self._documents[text]


class Words:
    """The vectors of a fake: those of the words of a text."""

    def query(self, text):
        return FakeEmbedder().embed_query(text)

    document = query


def of_task(task, vector, alpha=0.8):
    return Offset(scope="task", task=task, vector=np.asarray(vector), alpha=alpha, n=4, evidence=UNGATED)


def everywhere(alpha=0.8):
    """A global offset of that dose."""
    return Offsets([Offset("global", np.array(drawn("offset")), alpha, 4, UNGATED)], width=WIDTH)


# Every query lies near the document of the first task; the offset of each task carries it to that of the task.
TASKS, AXES = [f"task{i}" for i in range(WIDTH)], np.eye(WIDTH)
POINTING = Vectors((AXES[0] + 0.1).tolist(), dict(zip(TASKS, AXES.tolist(), strict=True)))
CARRYING = Offsets([of_task(task, 4 * axis, 0.9) for task, axis in zip(TASKS, AXES, strict=True)], width=WIDTH)
BILLING = Offsets([of_task("billing", drawn("offset"))], width=WIDTH)


def of_words(task="default", texts=TEXTS, width=WIDTH):
    """A rescorer for *texts* that counts shared words ten times as much as similarity, beside no offset."""
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for a test")
    rescorer = Rescorer(np.array([1.0, 10.0, 0.0, 0.0]), Vocabulary.of(texts), evidence)
    unserved = Evidence(9, None, None, "abstained", "")
    return Offset("local", np.zeros(width), 0.0, 9, unserved, task=task, rescorer=rescorer)


def likeness(text):
    """The cosine of a text with what every question means."""
    vector = np.array(drawn(text))
    return float(MEANT @ vector / np.linalg.norm(MEANT) / np.linalg.norm(vector))


def knowing(score_of=lambda _, text: 30 * likeness(text), **options):
    """A judge that knows what every question means, in logits."""
    return FakeJudge(score_of, scale="logit", fingerprint="knowing", **options)
