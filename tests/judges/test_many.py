"""Judges asked about many queries at once: order, neighbours, budgets, progress, refusals, and what a stop loses."""

from __future__ import annotations

import logging
from threading import Event

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests.judges.conftest import served
from tests.judges.test_local import DOCUMENTS, QUERY, plain_loop
from tttembed_rag import JudgeError
from tttembed_rag.clients.retrying import RefusedError, RefusedTextsError
from tttembed_rag.clients.usage import metered
from tttembed_rag.judges import CrossEncoderJudge, HttpJudge, LocalChat, RubricJudge, YesNoJudge
from tttembed_rag.judges.contract import scored_many
from tttembed_rag.judges.packing import SHARED, blocks_of, mask_of, packed, shared_tokens
from tttembed_rag.judging import Budget, Plan, ScoreCache, judge_all
from tttembed_rag.testing import FakeJudge

REQUESTS = [
    (QUERY, DOCUMENTS),
    ("Where is the mill?", ["", *DOCUMENTS[:2]]),
    ("river", ["no"]),
    ("mill " * 30, DOCUMENTS),
]
PAIRS = [(query, text) for query, texts in REQUESTS for text in texts if text]


class Pooling(FakeJudge):
    """A judge that is asked about twelve pairs of several queries at once, and notes how many each call had."""

    pairs_per_call = 12

    def __init__(self, **settings):
        super().__init__(lambda _, text: 1 / (1 + len(text)), fingerprint="pooling", **settings)
        self.packs: list[int] = []

    def score_many(self, requests):
        self.packs.append(sum(len(texts) for _, texts in requests))
        return [self.score(*request) for request in requests]


def numbers(answers):
    """The scores of several requests as one array, NaN where there is none."""
    return np.array([np.nan if score is None else score for scores in answers for score in scores])


@pytest.fixture(params=["yes/no", "yes/no, packed", "yes/no, padded", "cross-encoder", "rubric", "http", "fake"])
def judge(request, reranker, classifier, cohere):
    """A judge of each kind."""
    if request.param == "http":
        return HttpJudge(cohere.url, "cohere")
    if request.param == "cross-encoder":
        return CrossEncoderJudge(*classifier, batch_tokens=300)
    if request.param == "rubric":
        return RubricJudge(lambda prompt: f"Score: {len(prompt) % 6}", model="lengths")
    if request.param == "fake":
        return FakeJudge()
    made = YesNoJudge(*reranker, pooled=request.param != "yes/no")
    made._sequence = 700 * request.param.endswith("packed")
    return made


def test_every_judge_scores_many_as_one_by_one(judge):
    """Each request has its scores, in order, and no other request has a part in them."""
    expected = [judge.score(*request) for request in REQUESTS]

    assert_allclose(numbers(scored_many(judge, REQUESTS)), numbers(expected), atol=1e-5)


class TestPacked:
    """Causal rerankers that read pairs of many queries in one sequence, in float32."""

    @pytest.mark.parametrize("room", [500, 900, 4000])
    def test_scores_are_those_of_the_model_card(self, reranker, room):
        """Each pair, whatever it shares a sequence with, has the score that it has alone."""
        judge = YesNoJudge(*reranker, instruction="Find help", pooled=True)
        judge._sequence = room
        expected = [plain_loop(*reranker, query, [text], "Find help")[0] for query, text in PAIRS]

        scores = numbers(judge.score_many(REQUESTS))
        assert np.ptp(expected) > 0.01
        assert_allclose(scores[~np.isnan(scores)], expected, atol=1e-5)

    def test_frame_and_query_are_read_once(self, reranker):
        """Fewer tokens are fed than by keys and values of each query, and far fewer than pair by pair."""
        fed = []
        for pooled, sequence in ((False, 0), (True, 0), (True, 2000)):
            judge = YesNoJudge(*reranker, pooled=pooled)
            judge._sequence = sequence
            with metered() as meter:
                judge.score_many(REQUESTS)
            fed.append(meter.usage.input_tokens)
        by_query, by_pair, at_once = fed

        assert at_once < by_query < by_pair / 2

    def test_sequences_hold_every_row_once(self):
        """Rows come in order, within the room, each with its own tokens at its own places."""
        queries = [[[1, 2, 3, q, d, *range(d)] for d in range(3, 9)] for q in range(5, 8)]
        sequences = list(packed(queries, 30))
        rows = [row for own in queries for row in own]
        read = []
        for sequence in sequences:
            ids, places, query, document = map(np.array, sequence.columns)
            for end in sequence.ends:
                own = (query == SHARED) | ((query == query[end]) & np.isin(document, (SHARED, document[end])))
                assert places[own].tolist() == list(range(own.sum()))
                read.append(ids[own].tolist())

        assert read == rows
        assert max(map(len, sequences)) <= 30
        assert sum(map(len, sequences)) < sum(map(len, rows))

    def test_rows_that_are_alike_keep_a_token_each(self):
        """Where one row is all of another, its last token is its own."""
        assert shared_tokens([[1, 2], [1, 2], [1, 2, 3]]) == 1

    def test_blocks_are_those_of_the_mask(self):
        """What the kernel on a card passes over is what no token sees, and its scores are those of the whole mask."""
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        random = np.random.default_rng(0)
        queries = torch.tensor([SHARED] * 40 + sorted(random.integers(0, 2, 344)))
        documents = torch.tensor([SHARED] * 300 + sorted(random.integers(0, 4, 84)))
        blocks, mask = blocks_of(queries, documents), mask_of(queries, documents)
        expected = create_block_mask(blocks.mask_mod, None, None, 384, 384, device="cpu")

        assert torch.equal(blocks.to_dense(), expected.to_dense())
        assert torch.equal(blocks.full_kv_num_blocks, expected.full_kv_num_blocks)
        states = [torch.randn(1, 2, 384, 16) for _ in range(3)]
        whole = torch.nn.functional.scaled_dot_product_attention(*states, attn_mask=mask)
        with pytest.warns(UserWarning, match="flex_attention called without torch.compile"):
            by_blocks = flex_attention(*states, block_mask=blocks)
        assert_allclose(by_blocks, whole, atol=1e-5)

    @pytest.mark.parametrize(
        ("error", "sequence"), [(torch.OutOfMemoryError("CUDA out of memory"), 700), (RuntimeError("no compiler"), 0)]
    )
    def test_what_cannot_be_packed_is_scored_all_the_same(self, reranker, monkeypatch, caplog, error, sequence):
        """Memory that ends halves the sequence; a kernel that cannot be made leaves padding."""
        judge = YesNoJudge(*reranker, pooled=True)
        expected, judge._sequence = numbers(judge.score_many(REQUESTS)), 1400
        read = judge._read

        def failing(some):
            if judge._sequence > 700:
                raise error
            return read(some)

        monkeypatch.setattr(judge, "_read", failing)
        with caplog.at_level(logging.ERROR):
            assert_allclose(numbers(judge.score_many(REQUESTS)), expected, atol=1e-5)
        assert judge._sequence == sequence

    def test_layers_that_see_less_are_never_packed(self, reranker):
        """A model with a window, or with a state that runs on, would read what is not of its row."""
        model, tokenizer = reranker
        model.config.layer_types, plain = ["sliding_attention", "full_attention"], model.config.layer_types
        try:
            judge = YesNoJudge(model, tokenizer, pooled=True)
        finally:
            model.config.layer_types = plain

        assert judge.pairs_per_call == 0


class TestPlans:
    """`judge_all` with a judge that takes many queries."""

    def test_calls_hold_many_queries_in_the_order_of_the_plan(self):
        """Queries are asked as without packs, as many at once as the judge says."""
        single, many = FakeJudge(lambda _, text: 1 / (1 + len(text))), Pooling()
        plan = Plan(served(10), (5,))
        expected = judge_all(plan, single, ScoreCache.open(None), concurrency=1)
        verdicts = judge_all(plan, many, ScoreCache.open(None), concurrency=1)

        assert many.asked == single.asked
        assert many.packs == [15, 15, 15, 5]
        assert verdicts.rewards == expected.rewards

    @pytest.mark.parametrize("cap", [0, 49, 50, 160, 260, 1000])
    @pytest.mark.parametrize("concurrency", [1, 8])
    def test_a_cap_cuts_before_the_call(self, cap, concurrency):
        """What a cap leaves is used up to the query, as without packs, and never exceeded."""
        plan = Plan(served(10), (5,), Budget(tokens=cap))
        single = judge_all(plan, FakeJudge(lambda _, text: 1 / (1 + len(text))), ScoreCache.open(None))
        many = judge_all(plan, Pooling(), ScoreCache.open(None), concurrency=concurrency)

        assert many.progress.usage.tokens == single.progress.usage.tokens <= cap
        assert (many.rewards, bool(many.stopped)) == (single.rewards, bool(single.stopped))

    def test_progress_counts_pairs_with_an_answer(self):
        """What a call under way asks about is not told as done."""
        seen = []
        judge_all(Plan(served(10), (5,)), Pooling(), ScoreCache.open(None), watch=lambda now: seen.append(now.pairs))

        assert {after - before for before, after in zip([0, *seen], seen, strict=False)} == {15, 5}
        assert seen[-1] == 50

    def test_a_stop_loses_one_pack_at_most(self):
        """No further call is made, what was answered is kept, and the next run asks about the rest alone."""
        cache, stop, plan = ScoreCache.open(None), Event(), Plan(served(10), (5,))
        first, second = Pooling(), Pooling()
        judge_all(plan, first, cache, concurrency=1, stop=stop, watch=lambda _: stop.set())
        verdicts = judge_all(plan, second, cache, concurrency=1)

        assert first.packs == [15]
        assert second.packs == [15, 15, 5]
        assert (verdicts.progress.cached, len(verdicts.rewards)) == (15, 10)


class TestRefusals:
    """A document that cannot be judged."""

    def test_a_request_that_is_refused_leaves_the_others(self):
        """A request that is refused whole is not judged; where all are, that is an error."""

        class Strict(FakeJudge):
            def score(self, query, documents):
                if query == "bad":
                    raise RefusedTextsError("refused")
                return super().score(query, documents)

        judge = Strict()
        assert scored_many(judge, [("wool", ["wool"]), ("bad", ["a", "b"]), ("x", ["y"])]) == [
            [1.0],
            [None, None],
            [0.0],
        ]
        with pytest.raises(RefusedTextsError):
            scored_many(judge, [("bad", ["a"])])
        with pytest.raises(RefusedError):
            scored_many(judge, [("bad", ["a"])] * 2)

    def test_a_server_that_refuses_one_document_judges_the_others(self, serve):
        """Requests go side by side, and each document has its own answer."""

        def answer(_path, body, _):
            if "poison" in body["documents"]:
                return 400, {}, {"message": "filtered"}
            results = [{"index": at, "relevance_score": len(text) / 10} for at, text in enumerate(body["documents"])]
            return 200, {}, {"results": results}

        judge = HttpJudge(serve(answer).url, "cohere")
        assert judge.score_many([("a", ["x", "poison", "xx"]), ("b", ["poison"]), ("c", ["xxx"])]) == [
            [0.1, None, 0.2],
            [None],
            [0.3],
        ]

    def test_a_row_that_does_not_fit_in_memory_is_not_judged(self, classifier, monkeypatch):
        """The others are; where none fits, that is an error."""
        judge = CrossEncoderJudge(*classifier)
        expected, logits, most = judge.score(QUERY, DOCUMENTS), judge._logits, 64

        def small(pairs):
            if max(len(ids) for ids, _ in pairs) >= most:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return logits(pairs)

        monkeypatch.setattr(judge, "_logits", small)
        scores = judge.score(QUERY, DOCUMENTS)
        assert 0 < scores.count(None) < len(DOCUMENTS)
        assert_allclose(
            *zip(*((a, b) for a, b in zip(scores, expected, strict=True) if a is not None), strict=True), atol=1e-5
        )
        most = 0
        with pytest.raises(JudgeError, match="tokens to fit in memory"):
            judge.score(QUERY, DOCUMENTS)


def test_answers_side_by_side_are_those_of_each_prompt(reranker):
    """A local chat model draws by seed and place alone: no other prompt has a part in an answer."""
    model, tokenizer = reranker
    chat = LocalChat(model, tokenizer, new_tokens=16)
    prompts = ["one", "Where is the old mill by the river?", "yes " * 30]
    rows = [chat._head + ids + chat._tail for ids in chat._text.ids(prompts)]
    with torch.inference_mode():
        alone = [chat._written([row])[0].tolist() for row in rows]
        torch.manual_seed(7)  # of the process, which decides nothing
        together = chat._written(rows).tolist()
        otherwise = LocalChat(model, tokenizer, new_tokens=16, seed=7)._written(rows).tolist()

    assert together != otherwise
    for own, beside in zip(alone, together, strict=True):
        assert beside[: len(own)] == own
    assert len({tuple(own) for own in alone}) == 3


def test_a_local_chat_model_grades_many_queries_at_once(reranker, monkeypatch):
    """All prompts of a call reach the model together, and each document has its own grade."""
    chat = LocalChat(*reranker, new_tokens=4)
    counts = []
    monkeypatch.setattr(chat, "answers", lambda prompts: counts.append(len(prompts)) or ["Score: 3", None, "Score: 5"])
    judge = RubricJudge(chat, model=chat.name)

    assert judge.score_many([("a", ["x", ""]), ("b", ["y", "z"])]) == [[3.0, None], [None, 5.0]]
    assert (counts, judge.pairs_per_call > 1) == ([3], True)
