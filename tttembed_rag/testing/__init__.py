"""For the tests of an application: fakes of a judge, an embedder, a log and a clock, and the tests of a store.

The fakes do no input or output and give the same answers each time:

    judge, model = FakeJudge(), FakeEmbedder()
    log = RewardLog.of(judge)
    log.record("wash wool", texts, judge.score("wash wool", texts))
    offsets = fit(log.rewards(model.embed_query, model.embed_documents))

A store on a database of your own passes `StoreSuite`. In a test file of pytest, subclass it and name a database
without tables, another for each test:

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def store_url(self):
            return "postgresql+psycopg://..."

`pytest.register_assert_rewrite("tttembed_rag.testing")` in conftest.py makes its failures readable.
"""

from tttembed_rag.testing.fakes import FakeClock, FakeEmbedder, FakeJudge, FakeLog, Logged, word_overlap
from tttembed_rag.testing.queries import JUDGE, eventually, facts, learned, traffic, unrewarded
from tttembed_rag.testing.suite import StoreSuite

__all__ = [
    "JUDGE",
    "FakeClock",
    "FakeEmbedder",
    "FakeJudge",
    "FakeLog",
    "Logged",
    "StoreSuite",
    "eventually",
    "facts",
    "learned",
    "traffic",
    "unrewarded",
    "word_overlap",
]
