"""For the tests of an application: fakes of a judge, an embedder, a log and a clock. Nothing here needs pytest.

The fakes do no input or output and give the same answers each time:

    judge, model = FakeJudge(), FakeEmbedder()
    log = RewardLog.of(judge)
    log.record("wash wool", texts, judge.score("wash wool", texts))
    offsets = fit(log.rewards(model.embed_query, model.embed_documents))
"""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade

if TYPE_CHECKING:
    from tttembed_rag.testing.fakes import FakeClock as FakeClock
    from tttembed_rag.testing.fakes import FakeEmbedder as FakeEmbedder
    from tttembed_rag.testing.fakes import FakeJudge as FakeJudge
    from tttembed_rag.testing.fakes import FakeLog as FakeLog
    from tttembed_rag.testing.fakes import Logged as Logged
    from tttembed_rag.testing.fakes import word_overlap as word_overlap
    from tttembed_rag.testing.waiting import eventually as eventually

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_rag.testing.fakes": [
                "FakeClock",
                "FakeEmbedder",
                "FakeJudge",
                "FakeLog",
                "Logged",
                "word_overlap",
            ],
            "tttembed_rag.testing.waiting": ["eventually"],
        },
    )
