"""Judges made of judges: ensembles and calibration; and judges from a line of text."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tttembed_rag import InputError, MissingExtraError, RewardError, Rewards
from tttembed_rag.judges import (
    CalibratedJudge,
    Calibration,
    CrossEncoderJudge,
    EnsembleJudge,
    HttpJudge,
    RubricJudge,
    YesNoJudge,
    checked_rewards,
    open_judge,
)
from tttembed_rag.testing import FakeJudge


def fixed(scale, **scores):
    """A judge with scores by document."""
    return FakeJudge(
        lambda _, text: scores.get(text), scale=scale, fingerprint=f"fixed:{scale}:{sorted(scores.items())}"
    )


class TestEnsemble:
    """Several judges as one."""

    async def test_averages_rewards_not_scores(self):
        """Each judge is mapped by its own scale first, and the async twin merges alike."""
        judge = EnsembleJudge([fixed("rubric:0,5", a=5.0, b=0.0), fixed("logit", a=0.0, b=0.0)])

        assert judge.score("q", ["a", "b"]) == await judge.ascore("q", ["a", "b"]) == [0.75, 0.25]

    def test_a_pair_that_one_did_not_judge_is_not_judged(self):
        """The rest alone would be another judge."""
        judges = [fixed("probability", a=0.5, b=0.5), fixed("probability", a=0.7)]

        assert EnsembleJudge(judges).score("q", ["a", "b"]) == [0.6, None]

    def test_forecasts_what_all_of_them_use(self):
        """Caps and batches are those of its judges together, calibrated or not."""
        graders = [RubricJudge(lambda _: "Score: 1", model=name, output_tokens=100) for name in "ab"]
        both = CalibratedJudge(EnsembleJudge(graders), Calibration(1.0, 0.0))

        assert both.documents_per_call == 1
        assert both.forecast("q", ["d"]) == graders[0].forecast("q", ["d"]) + graders[1].forecast("q", ["d"])

    def test_what_cannot_be_merged_is_refused(self):
        """Scores without a meaning cannot be averaged, and an ensemble of one is a judge."""
        with pytest.raises(RewardError, match="calibrate them first"):
            EnsembleJudge([fixed("unbounded", a=3.0), fixed("logit", a=0.0)])
        for wrong in ([fixed("logit")], fixed("logit")):
            with pytest.raises(InputError, match=r"^judges: expected a list of at least two, got "):
                EnsembleJudge(wrong)
        with pytest.raises(InputError, match=r"^judge: expected an object with .*, got the class FakeJudge$"):
            EnsembleJudge([FakeJudge, FakeJudge])

    def test_its_fingerprint_names_its_judges(self):
        """Other judges are another judge; their order is not."""
        a, b, c = (fixed("probability", a=p) for p in (0.1, 0.2, 0.3))
        same = EnsembleJudge([a, b]).fingerprint, EnsembleJudge([b, a]).fingerprint

        assert same[0] == same[1]
        assert EnsembleJudge([a, c]).fingerprint != same[0]


class TestCalibration:
    """A meaning for scores without one."""

    def test_recovers_a_planted_one(self):
        """Labels drawn from a logistic curve give the curve back."""
        rng = np.random.default_rng(1)
        scores = rng.normal(20.0, 4.0, 20_000)
        relevant = rng.random(20_000) < 1 / (1 + np.exp(-(0.5 * scores - 9.0)))
        found = Calibration.fit(scores, relevant)

        assert found.slope == pytest.approx(0.5, rel=0.05)
        assert found.intercept == pytest.approx(-9.0, rel=0.05)

    def test_makes_an_unbounded_judge_usable(self):
        """Calibrated scores are probabilities, in the order they had; None stays None."""
        judge = CalibratedJudge(fixed("unbounded", a=30.0, b=10.0), Calibration.fit([5, 12, 25, 31], [0, 0, 1, 1]))
        a, b, c = judge.score("q", ["a", "b", "c"])

        assert 1 > a > 0.5 > b > 0
        assert c is None

    def test_separable_scores_have_a_finite_slope(self):
        """Two labels are no certainty."""
        found = Calibration.fit([0.0, 1.0], [False, True])

        assert 0 < found.slope < 10

    @pytest.mark.parametrize(
        ("scores", "relevant", "message"),
        [
            ([1, 2], [True, True], "^relevant: expected both kinds of label, got 2 relevant and 0 not$"),
            ([2, 1], [False, True], "^scores: expected larger ones for relevant documents, got the opposite$"),
            ([1, np.nan], [False, True], "^scores: expected finite numbers"),
            ([1, 2, 3], [False, True], "^scores: expected finite numbers, one per label"),
        ],
    )
    def test_nothing_to_learn_from_is_an_error(self, scores, relevant, message):
        """The error says what is missing."""
        with pytest.raises(InputError, match=message):
            Calibration.fit(scores, relevant)


def test_an_unbounded_scale_is_refused_by_rewards(some_rewards):
    """Unbounded scores reach no fit."""
    with pytest.raises(RewardError, match="calibrate them first"):
        Rewards.from_arrays(np.ones((1, 2)), np.ones((1, 2, 2)), [[3.0, 9.0]], scale="unbounded")


def test_rewards_keep_what_was_not_judged_apart():
    """Not judged is NaN, never zero."""
    rewards = checked_rewards(fixed("rubric:0,5"), [5.0, None, 0.0])
    column = checked_rewards(fixed("rubric:0,5"), np.array([[5.0], [0.0]]))  # as some cross-encoders give them

    assert rewards[[0, 2]].tolist() == column.tolist() == [1.0, 0.0]
    assert np.isnan(rewards[1])


class TestSpecs:
    """Judges from a line of text."""

    def test_opens_local_models(self, reranker_folder, classifier_folder):
        """Kind, folder and options make the judge."""
        kinds = {
            f"yesno:{reranker_folder}?device=cpu&tokens=512&instruction=Find%20it": YesNoJudge,
            f"cross-encoder:{classifier_folder}?device=cpu&scale=logit&batch_tokens=99": CrossEncoderJudge,
            f"rubric:{reranker_folder}?device=cpu": RubricJudge,
        }
        opened = {spec: open_judge(spec) for spec in kinds}

        assert kinds == {spec: type(judge) for spec, judge in opened.items()}
        assert [str(judge.scale) for judge in opened.values()] == ["probability", "logit", "rubric:0,5"]

    def test_opens_http(self, cohere, monkeypatch):
        """The shape stands in the scheme, the key in the environment."""
        monkeypatch.setenv("HERS", "k1")
        monkeypatch.setenv("MINE", "k2")
        address = cohere.url.removeprefix("http:")
        for spec in (
            f"http+cohere:{address}?model=m&key=HERS",
            f"http+cohere:{address}/other?key=MINE&per_minute=100&characters=3",
        ):
            judge = open_judge(spec)
            assert isinstance(judge, HttpJudge)
            judge.score("q", ["document"])

        assert [body["documents"] for _, _, body in cohere.asked] == [["document"], ["doc"]]
        assert [(path, headers["authorization"]) for path, headers, _ in cohere.asked] == [
            ("/v2/rerank", "Bearer k1"),
            ("/other", "Bearer k2"),
        ]
        assert cohere.asked[0][2]["model"] == "m"

    @pytest.mark.parametrize(
        ("vendor", "path", "answer", "address"),
        [
            ("cohere", "/v2/rerank", "results", "https://api.cohere.com/v2/rerank"),
            ("jina", "/v1/rerank", "results", "https://api.jina.ai/v1/rerank"),
            ("voyage", "/v1/rerank", "data", "https://api.voyageai.com/v1/rerank"),
            ("zeroentropy", "/v1/models/rerank", "results", "https://api.zeroentropy.dev/v1/models/rerank"),
        ],
    )
    def test_opens_rerankers_of_vendors(self, serve, monkeypatch, vendor, path, answer, address):
        """The vendor's name says address, path, key and answer; only the model is named."""
        monkeypatch.setenv(f"{vendor.upper()}_API_KEY", "k")
        server = serve(lambda *_: (200, {}, {answer: [{"index": 0, "relevance_score": 0.25}]}))
        judge = open_judge(f"{vendor}:rerank-1?url={server.url}&scale=probability&key={vendor.upper()}_API_KEY")
        at_home = open_judge(f"{vendor}:rerank-1?scale=probability")

        assert (judge.score("q", ["document"]), at_home.endpoint.url) == ([0.25], address)
        ((asked, headers, body),) = server.asked
        assert (asked, headers["authorization"], body["model"]) == (path, "Bearer k", "rerank-1")

    def test_opens_gemini(self, serve, monkeypatch):
        """Gemini grades by rubric, at another address if told."""
        monkeypatch.setenv("GEMINI_API_KEY", "k")
        part = {"content": {"parts": [{"text": "Score: 2"}]}, "finishReason": "STOP"}
        server = serve(lambda *_: (200, {}, {"candidates": [part]}))

        assert open_judge(f"gemini:m?url={server.url}").score("q", ["d"]) == [2.0]

    @pytest.mark.parametrize(
        ("module", "spec", "command"),
        [
            ("httpx", "http+tei://127.0.0.1:9", r"httpx is not installed; run: pip install 'tttembed-rag\[judges\]'"),
            ("tenacity", "http+tei://127.0.0.1:9", r"tenacity .* 'tttembed-rag\[judges\]'"),
            ("google.genai", "gemini:m", r"google .* 'tttembed-rag\[gemini\]'"),
            ("transformers", "yesno:m", r"transformers .* 'tttembed-rag\[local\]'"),
        ],
    )
    def test_a_missing_extra_has_its_command(self, monkeypatch, module, spec, command):
        """What is not installed is named with the command that installs it."""
        monkeypatch.setitem(sys.modules, module, None)

        with pytest.raises(MissingExtraError, match=command):
            open_judge(spec)

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("qwen", "^judge: expected yesno:MODEL, .*, got 'qwen'$"),
            ("yesno:", "^judge: expected yesno:MODEL, .*, got 'yesno:'$"),
            ("http+cohere://", "^judge: expected yesno:MODEL"),
            ("magic:8ball", "^judge: expected yesno:MODEL, .*, got 'magic:8ball'$"),
            ("http+vertex://h", "^shape: expected one of cohere, "),
            ("http+cohere://127.0.0.1?modle=x", "^judge: expected options model, key, .*, got modle$"),
            ("http+cohere://127.0.0.1?characters=0", "^longest_document: expected at least 1, got 0$"),
            ("cohere:m", "^key: expected one in the environment variable COHERE_API_KEY, found none$"),
            ("jina:m?scale=logit", "^key: expected one in the environment variable JINA_API_KEY, found none$"),
            ("yesno:m?tokens=inf", "^judge: expected a whole number for tokens in .*, got inf$"),
            ("yesno:m?batch_tokens=1.5", "^judge: expected a whole number for batch_tokens in .*, got 1.5$"),
            ("http+cohere://127.0.0.1?key=NOT_SET_ANYWHERE", "^judge: expected key=NAME with an environment variable"),
            ("http+cohere://127.0.0.1?per_minute=x", "^judge: expected a number for per_minute in .*, got 'x'$"),
        ],
    )
    def test_other_specs_are_errors(self, monkeypatch, spec, message):
        """The error lists what is known and shows what came."""
        for vendor in ("COHERE", "JINA"):
            monkeypatch.delenv(f"{vendor}_API_KEY", raising=False)
        with pytest.raises(InputError, match=message):
            open_judge(spec)
