"""A cascade: which lists verdicts certify to need no reranker, and a reranker that is asked about the others."""

import asyncio
import logging
import re
from copy import deepcopy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tests.gate.test_depth import case_of, habit, labelled, losses
from tests.test_words import judged
from tttembed_rag import InputError, LiveOffsets, Offsets, RewardLog, Steering, context, fit
from tttembed_rag.errors import OffsetFileError
from tttembed_rag.gate.depth import skips_of
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.thresholds import CERTIFIED_LEVEL, TYPICAL_LOST
from tttembed_rag.offsets.codes import LOST, OTHER_JUDGE
from tttembed_rag.offsets.rerankskips import SHARES, Skips, digest_of
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.serving import Cascade
from tttembed_rag.serving.cascade import WATCHED

LOSS, NEVER = 0.03, 1e-12


class Reranker:
    """Knows the rewards of some texts, and counts its calls."""

    scale = Scale()

    def __init__(self, fingerprint="unnamed"):
        self.fingerprint = fingerprint
        self.rewards = {}
        self.queries = []

    def score(self, query, documents):
        self.queries.append(query)
        return [self.rewards[text] for text in documents]


def request(query, offsets=None):
    """A request for *query* by *offsets*; by base vectors without."""
    return Steering(LiveOffsets() if offsets is None else offsets).request(query)


class Requests:
    """Fresh queries of a habit: for each its text, and the texts and cosines of what a search with *offsets* finds."""

    def __init__(self, offsets, n=300, seed=1):
        self.offsets = offsets
        rewards = habit(n, seed=seed)
        moved = offsets.apply(rewards.queries.unit)
        self.losses = losses(rewards, moved - rewards.queries.unit, 1)
        self.of, self.rewards = {}, {}
        for q, begin in enumerate(rewards.starts[:-1]):
            documents = rewards.documents.rows(rewards.candidates[begin : begin + 10]).unit
            cosines = documents @ (moved[q] / np.linalg.norm(moved[q]))
            order = np.argsort(-cosines)
            texts = [f"{seed} {q} {place}" for place in range(10)]
            self.rewards |= dict(zip(texts, rewards.values[begin : begin + 10].tolist(), strict=True))
            self.of[f"query {seed} {q}"] = [texts[place] for place in order], cosines[order].tolist()

    def leads(self):
        return np.array([scores[0] - scores[1] for _, scores in self.of.values()])

    def through(self, cascade, offsets=None):
        """The lists by query, under *offsets* or those that found them."""
        served = self.offsets if offsets is None else offsets
        return {query: cascade.order(request(query, served), *results) for query, results in self.of.items()}


@pytest.fixture(scope="module")
def offsets():
    """What 200 queries of the habit taught, where every document of `Requests` was the best of a list."""
    fitted = fit(habit(200), trusted=True)
    best = tuple(digest_of(f"{seed} {q} {place}") for seed, q, place in product((1, 2), range(300), range(10)))
    local = replace(fitted["local:default"], skips=replace(fitted.skips(), best=best))
    return Offsets([local], width=16, settings=fitted.settings)


@pytest.fixture
def reranker(offsets):
    """The judge that the habit is of."""
    judge = Reranker()
    judge.rewards = Requests(offsets).rewards
    return judge


class TestCertificate:
    """What is lost by asking no reranker about lists that lead, and what is published of it."""

    def test_is_that_of_the_definition(self):
        """Lists are taken by their lead; each bound is that of the mean loss by a loop, or of fewer lists."""
        rewards = habit(80)
        case = case_of(rewards)
        scores = case.moved(np.zeros((80, 16)))[1]
        lost = losses(rewards, np.zeros((80, 16)), 1)
        best = [sorted(row[real], reverse=True) for row, real in zip(scores, case.grid.present, strict=True)]
        lead = np.array([row[0] - row[1] for row in best])
        expected, leads = [], []
        for share in range(1, SHARES + 1):
            leads.append(sorted(lead, reverse=True)[80 * share // SHARES - 1])
            skipped = np.where(lead >= leads[-1], lost, 0.0)
            expected.append(Gain.of(skipped, case.voices, case.groups, typical=TYPICAL_LOST).above(CERTIFIED_LEVEL))

        skips = skips_of(case, scores)

        kept = len(skips.leads)
        assert 0 < kept < SHARES
        np.testing.assert_allclose(skips.leads, leads[:kept], atol=1e-9)
        np.testing.assert_allclose(skips.lost, np.maximum.accumulate(expected)[:kept], atol=1e-9)
        assert np.maximum.accumulate(expected)[kept] > 0.05

    def test_says_how_much_a_loss_buys(self):
        """The deepest share whose bound is small enough, in words too."""
        skips = Skips((3.0, 2.0, 1.0), (0.001, 0.01, 0.02), 10)

        assert (skips.lead(0.01), skips.share(0.01)) == (2.0, 2 / SHARES)
        assert (skips.lead(0.0001), skips.summary(0.0001)) == (np.inf, "")
        assert skips.summary(0.01) == "a cascade skips the reranker in 5% of requests: at most 0.01 nDCG@10 lost (90 %)"

    def test_is_about_the_list_that_is_served(self):
        """Where words sort it, the lead is that of the rescorer's scores, which cosines never reach."""
        fitted = fit(judged(120), trusted=True)

        assert fitted.rescorer() is not None
        assert max(fitted.skips().leads) > 2
        texts = ["nothing", "E1007: what to do"]
        ranked = request("what of E1007?", fitted).ranked(texts, [0.5, 0.4])
        scores = fitted.rescorer().scores("what of E1007?", texts, [0.5, 0.4])
        assert ranked.places == np.argsort(-scores).tolist()
        assert ranked.lead == pytest.approx(abs(scores[0] - scores[1]))

    def test_knows_which_documents_verdicts_put_first(self):
        """By the texts that were judged: the best of a list may lead another, what was never the best may not."""
        rewards = judged(120)
        best = set(rewards.doc_texts[rewards.candidates[rewards.values == 1]])
        skips = fit(rewards, trusted=True).skips()

        assert {text for text in rewards.doc_texts if skips.has_led(text)} == best
        assert fit(habit(200), trusted=True).skips().best == ()

    def test_needs_sixty_questions_and_what_is_served(self, offsets):
        """Few queries, an offset that is withheld, votes and the searcher's own lists certify nothing."""
        assert offsets.skips().share(LOSS) > 0
        assert fit(habit(59), trusted=True).skips() is None
        assert fit(replace(habit(200), values=np.full(2000, 0.5)), trusted=True).skips() is None
        voted = replace(habit(200), sources=np.array([f"user {q % 40}" for q in range(200)]))
        assert fit(voted).skips() is None
        assert fit(habit(80), trusted=True, served=lambda _, __: ["0", "1"]).skips() is None

    def test_trusted_labels_prove_what_the_judge_does_not_see(self):
        """A judge to whom all documents are much alike; labels that are its own change nothing, others do."""
        rewards = habit(200)
        scores = case_of(rewards).moved(np.zeros((200, 16)))[1]

        agreeing, denying = (skips_of(labelled(rewards, power)[0], scores) for power in (0.05, 2))
        unaudited = skips_of(labelled(rewards, 2)[1], scores)

        assert agreeing == unaudited
        assert denying.leads == unaudited.leads[: len(denying.leads)]
        assert denying.share(LOSS) < unaudited.share(LOSS)

    def test_holds_on_other_queries(self):
        """Of a dozen fits what is skipped loses more than is allowed on fresh queries in one or two."""
        broken, shares = 0, []
        for seed in range(12):
            fitted = fit(habit(80, seed=seed), trusted=True)
            if (skips := fitted.skips()) is None:
                continue
            fresh = Requests(fitted, 400, seed=1000 + seed)
            skipped = fresh.leads() >= skips.lead(LOSS)
            shares.append(skipped.mean())
            broken += (fresh.losses * skipped).mean() > LOSS

        assert np.mean(shares) > 0.1
        assert broken <= 3

    def test_a_file_refuses_another(self, offsets):
        """Numbers that cannot be are no skips."""
        for leads, lost in (((1.0, 2.0), (0.1, 0.2)), ((2.0, 1.0), (0.2, 0.1)), ((1.0,), ())):
            local = replace(offsets["local:default"], skips=Skips(leads, lost, 10))
            with pytest.raises(InputError, match=r"expected .* as skips"):
                Offsets([local], width=16).to_bytes()
        data = offsets.to_bytes().replace(b'"leads": [', b'"leads": [9e9,', 1)
        with pytest.raises(OffsetFileError):
            Offsets.from_bytes(data)


class AnsweringJudge:
    """A judge with one answer, which may be none."""

    scale, fingerprint = Scale("probability"), "answering"

    def __init__(self, answer):
        self._answer = answer

    def score(self, query, documents):
        return self._answer


# What an async `score` gives, which nobody awaits.
COROUTINE = asyncio.sleep(0)
COROUTINE.close()


NUMBERS = [("loss", 0.0), ("loss", "small"), ("explore", 0.0), ("explore", 1.5), ("explore", None)]


class TestCascade:
    """The calls of a reranker behind a search."""

    def test_asks_only_where_the_first_leads_by_too_little(self, offsets, reranker):
        """Lists that lead stay as the search gave them, all others come in the order of the reranker."""
        requests = Requests(offsets)
        cascade = Cascade(reranker, loss=LOSS, explore=NEVER)

        lists = requests.through(cascade)

        leading = requests.leads() >= offsets.skips().lead(LOSS)
        assert reranker.queries == [query for query, leads in zip(requests.of, leading, strict=True) if not leads]
        for leads, (query, (texts, _)) in zip(leading, requests.of.items(), strict=True):
            rewards = [reranker.rewards[texts[place]] for place in lists[query]]
            assert lists[query] == list(range(10)) if leads else rewards == sorted(rewards, reverse=True)
        assert cascade.counts == {
            "repeated": 0,
            "skipped": leading.sum(),
            "reranked": (~leading).sum(),
            "explored": 0,
        }

    def test_a_document_leads_where_the_reranker_has_put_it_first(self, offsets, reranker):
        """One that repeats the query is read however far it leads, again and again, until it was the best once."""
        local = offsets["local:default"]
        unread = Offsets([replace(local, skips=replace(local.skips, best=()))], width=16, settings=offsets.settings)
        results = ["planted", *"abcdefghi"], [0.9, *np.linspace(0.1, 0, 9)]
        cascade = Cascade(reranker, loss=LOSS, explore=NEVER)

        def first(query, reward):
            reranker.rewards = {"planted": reward} | dict.fromkeys("abcdefghi", 0.5)
            return results[0][cascade.order(request(query, unread), *results)[0]]

        assert [first(query, 0.0) for query in ("refund", "a refund", "the refund")] == ["a"] * 3
        assert [first("no refund", 0.5), cascade.counts["skipped"]] == ["planted", 0]
        assert [first("refund!", 0.9), cascade.counts["skipped"]] == ["planted", 0]
        assert [first("refund?", 0.9), cascade.counts["skipped"]] == ["planted", 1]

    def test_logs_a_fair_sample(self, offsets, reranker):
        """Without a certificate every verdict is kept; with one, those on the explored share, too few to stop it."""
        requests, live = Requests(offsets), LiveOffsets()
        log = RewardLog.of(reranker)
        cascade = Cascade(reranker, log=log, loss=LOSS, explore=0.15)

        first = dict(list(requests.of.items())[:20])
        for query, results in first.items():
            cascade.order(request(query, live), *results)
        before = cascade.counts["explored"]
        live.publish(offsets)
        rest = {query: results for query, results in requests.of.items() if query not in first}
        for query, results in rest.items():
            cascade.order(request(query, live), *results)

        assert log.trusted
        assert len(log) - 20 == cascade.counts["explored"] - before
        assert 0.05 * len(rest) < len(log) - 20 < 0.25 * len(rest)

    def test_a_text_that_comes_back_costs_no_call(self, offsets, reranker):
        """Verdicts are used again where they know the list, and once where they know half; no text is kept."""
        requests = Requests(offsets)
        cascade = Cascade(reranker, explore=NEVER)
        query, (texts, scores) = next(iter(requests.of.items()))
        other = [*texts[:6], "a", "b", "c", "d"]
        reranker.rewards |= dict.fromkeys("abcdefghij", 0.5)

        once = cascade.order(request(query), texts, scores)
        again = cascade.order(request(query), texts, scores)
        assert (once, reranker.queries) == (again, [query])
        partly = cascade.order(request(query), other, scores)
        rewards = [reranker.rewards[other[place]] for place in partly[:6]]
        assert partly[6:] == [6, 7, 8, 9]
        assert (rewards, len(reranker.queries)) == (sorted(rewards, reverse=True), 1)
        cascade.order(request(query), other, scores)
        assert len(reranker.queries) == 2
        cascade.order(request(query), ["e", "f", "g", "h", "i", "j", *texts[:4]], scores)
        assert (cascade.counts["repeated"], len(reranker.queries)) == (2, 3)

        assert query not in repr(cascade._kept)
        assert texts[0] not in repr(cascade._kept)

    def test_verdicts_stay_with_their_tenant_and_task(self, reranker, offsets):
        cascade = Cascade(reranker, explore=NEVER)
        query, results = next(iter(Requests(offsets).of.items()))
        for words in ({}, {"tenant": "acme"}, {"task": "billing"}):
            with context(**words):
                cascade.order(request(query), *results)
                cascade.order(request(query), *results)

        assert len(reranker.queries) == 3

    def test_an_explored_text_is_read_again_where_half_is_known(self, reranker, offsets):
        """What is explored is a fair sample of lists as they are now."""
        cascade = Cascade(reranker, explore=1.0)
        query, (texts, scores) = next(iter(Requests(offsets).of.items()))
        reranker.rewards |= dict.fromkeys("abcd", 0.5)
        for listed in (texts, texts, [*texts[:6], "a", "b", "c", "d"]):
            cascade.order(request(query), listed, scores)

        assert cascade.counts == {"repeated": 1, "skipped": 0, "reranked": 2, "explored": 2}

    def test_reads_as_deep_as_it_is_told_and_certified(self, reranker, offsets):
        """Documents below the depth stay; a depth that was not judged is not certified."""
        requests = Requests(offsets)
        shallow = Cascade(reranker, depth=4, loss=LOSS, explore=1.0)
        for query, (texts, scores) in requests.of.items():
            places = shallow.order(request(query, offsets), texts, scores)
            assert (sorted(places[:4]), places[4:]) == ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9])
        deep = Cascade(reranker, depth=11, loss=LOSS, explore=NEVER)
        requests.through(deep)

        assert deep.counts["skipped"] == 0

    def test_nothing_is_skipped_that_was_not_certified(self, offsets, reranker, caplog):
        """Lists under private offsets or none are reranked, and those with scores that are no cosines, not logged."""
        requests = Requests(offsets)
        own = fit(habit(200), scope="query", trusted=True)
        query, (texts, scores) = max(requests.of.items(), key=lambda item: item[1][1][0] - item[1][1][1])
        both = Offsets(
            [*offsets.values(), replace(own["query:3"], query_id=query)], width=16, settings=offsets.settings
        )
        log = RewardLog.of(reranker)
        private = Cascade(reranker, loss=LOSS, explore=NEVER, log=log)
        based = Cascade(reranker, loss=LOSS, explore=NEVER)
        private.order(request(query, both), texts, scores)
        based.order(request(query), texts, scores)
        known = len(log)
        for wrong in ([2.0 * score for score in scores], [None, *scores[1:]], scores[::-1]):
            strange = Cascade(reranker, loss=LOSS, explore=NEVER, log=log)
            strange.order(request(query, offsets), texts, wrong)
            assert strange.counts["reranked"] == 1
        converted = Cascade(reranker, loss=LOSS, explore=NEVER)
        distances = [2 - 2 * score for score in scores]
        converted.order(request(query, offsets), texts, distances, similarity=lambda distance: 1 - distance / 2)

        assert (private.counts["reranked"], based.counts["reranked"]) == (1, 1)
        assert len(log) == known
        assert converted.counts["skipped"] == 1

    def test_lists_of_one_document_and_none_are_asked_about_by_nobody(self, reranker):
        cascade = Cascade(reranker, explore=1.0)

        assert (cascade.order(request("q"), [], []), cascade.order(request("q"), ["a"], [1.0])) == ([], [0])
        assert reranker.queries == []

    def test_verdicts_are_logged_under_their_task_by_no_source(self, offsets, reranker):
        """A reranker's verdicts are its own, whoever asks."""
        log = RewardLog.of(reranker)
        query, results = next(iter(Requests(offsets).of.items()))
        with context(task="billing", source="bob"):
            Cascade(reranker, log=log).order(request(query), *results)

        assert {row[3:] for row in log.rows()} == {("billing", "")}

    def test_a_reranker_that_leaves_documents_out(self, offsets, reranker, caplog):
        """What it did not judge keeps its place; no score at all sorts nothing."""
        query, (texts, scores) = next(iter(Requests(offsets).of.items()))
        cascade = Cascade(reranker, explore=NEVER)
        reranker.rewards[texts[0]] = None
        assert cascade.order(request(query), texts, scores)[0] == 0
        reranker.rewards = dict.fromkeys(texts)
        assert cascade.order(request("another"), texts, scores) == list(range(10))
        assert "a list is served without the reranker" in caplog.text

    def test_a_log_that_fails_costs_no_order(self, offsets, reranker, caplog):
        log = RewardLog.of(reranker)
        query, (texts, scores) = next(iter(Requests(offsets).of.items()))
        log.note = lambda _: 1 / 0
        places = Cascade(reranker, log=log).order(request(query), texts, scores)

        rewards = [reranker.rewards[texts[place]] for place in places]
        assert rewards == sorted(rewards, reverse=True)
        assert "verdicts were not kept" in caplog.text

    def test_a_copy_is_the_same_cascade(self, reranker):
        """Hosts copy their components: memory, log and watch are shared."""
        cascade = Cascade(reranker)

        assert deepcopy({"part": cascade})["part"] is cascade

    def test_another_judge_is_always_asked(self, offsets, reranker, caplog):
        """What one judge's lists lose says nothing of another's."""
        other = Reranker("another")
        other.rewards = reranker.rewards
        requests = Requests(offsets)

        requests.through(Cascade(other, loss=LOSS, explore=NEVER))

        assert len(other.queries) == len(requests.of)
        assert caplog.text.count(OTHER_JUDGE) == 1

    def test_stops_where_explored_requests_lose_too_much(self, offsets, reranker, caplog):
        """A reranker whose taste turns is asked about every list after a block of explored requests."""
        requests = Requests(offsets)
        reranker.rewards = {text: 1 - reward for text, reward in reranker.rewards.items()}
        cascade = Cascade(reranker, loss=LOSS, explore=1.0)
        requests.through(cascade)
        assert caplog.text.count(LOST) == 1
        assert f"{WATCHED} explored requests lost" in caplog.text

        cascade._explore = NEVER
        more = Requests(Offsets.from_bytes(offsets.to_bytes()), seed=2)  # the same version, read again
        reranker.rewards |= more.rewards
        before = len(reranker.queries)
        more.through(cascade)

        assert len(reranker.queries) - before == len(more.of)

    def test_goes_on_where_explored_requests_lose_little(self, offsets, reranker, caplog):
        """The same requests with the taste that was learned stop nothing."""
        cascade = Cascade(reranker, loss=LOSS, explore=1.0)

        Requests(offsets).through(cascade)

        assert LOST not in caplog.text

    def test_serves_the_list_where_the_reranker_fails(self, offsets, reranker, caplog):
        """A failure costs no request; it is one line a minute."""
        reranker.rewards = {}
        requests = Requests(offsets)

        with caplog.at_level(logging.ERROR):
            lists = requests.through(Cascade(reranker, explore=NEVER), LiveOffsets())

        assert all(places == list(range(10)) for places in lists.values())
        assert caplog.text.count("a list is served without the reranker") == 1
        for query, texts in ((None, ["a", "b"]), ("q", [None, "b"]), (["a", "b"], "q"), ("q", "ab")):
            caplog.clear()
            assert Cascade(reranker).order(request(query), texts, [1.0, 0.5]) == list(range(len(texts)))
            assert re.search("not sorted by words: InputError: (query|texts): expected ", caplog.text)

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            ([0.5], "expected 3 scores, got 1"),
            ([0.5] * 9, "expected 3 scores, got 9"),
            (None, "expected a list of scores, got NoneType"),
            (0.5, "expected a list of scores, got float"),
            (["good"] * 3, "expected scores that are numbers or None"),
            (COROUTINE, "expected a list of scores, got coroutine: score must not be async"),
        ],
    )
    async def test_says_what_is_wrong_with_an_answer(self, caplog, answer, reason):
        """The list is served as it is."""
        cascade, call = Cascade(AnsweringJudge(answer)), (request("q"), ["a", "b", "c"], [0.9, 0.8, 0.7])

        assert cascade.order(*call) == await Cascade(AnsweringJudge(answer)).aorder(*call) == [0, 1, 2]
        assert caplog.text.count(f"served without the reranker: JudgeError: answering: {reason}") == 2

    def test_is_the_same_without_blocking(self, offsets, reranker):
        """Both doors lead to the same lists."""
        requests = Requests(offsets)
        lists = requests.through(Cascade(reranker, loss=LOSS, explore=NEVER))
        cascade = Cascade(reranker, loss=LOSS, explore=NEVER)

        async def ask():
            return {
                query: await cascade.aorder(request(query, offsets), *results) for query, results in requests.of.items()
            }

        assert asyncio.run(ask()) == lists

    @pytest.mark.parametrize(
        ("options", "line"),
        [
            *(({name: value}, f"{name}: expected a number > 0.*, got {value!r}") for name, value in NUMBERS),
            *(({"depth": depth}, f"depth: expected at least 1, got {depth!r}") for depth in (0, "10", 2.5)),
            ({"judge": Reranker}, r"judge: expected an object with .*, got the class Reranker"),
            ({"log": "sqlite:///ttt.db"}, "log: expected a RewardLog or a StoreLog, got str"),
            ({"log": RewardLog("another")}, "log: expected one for unnamed"),
        ],
    )
    def test_refuses_what_is_no_option(self, options, line):
        with pytest.raises(InputError, match=f"^{line}"):
            Cascade(**{"judge": Reranker()} | options)
