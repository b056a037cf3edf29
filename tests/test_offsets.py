"""Offsets: which one a query gets, what it does to the vector, and the file they are kept in."""

import json
import pickle
import re
import sys
import time
from dataclasses import asdict, replace
from threading import Event, Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal, assert_equal
from safetensors.numpy import load as to_tensors
from safetensors.numpy import save as to_safetensors

from tests.test_floor import learned
from tttembed_rag import Evidence, InputError, Offset, Offsets, Rewards, fit
from tttembed_rag.cli.telling import tell
from tttembed_rag.errors import OffsetFileError, VectorError
from tttembed_rag.offsets.codes import NOTHING_TO_GAIN
from tttembed_rag.offsets.kernel import KernelMap
from tttembed_rag.offsets.offset import Certificate
from tttembed_rag.rewards.observations import Candidate, Served

WIDTH = 6
UNGATED = Evidence(3, None, None, "ungated", "made for a test")
PUBLISHED = Evidence(30, 0.05, (0.01, 0.09), "published", "held out")
ABSTAINED = Evidence(3, 0.01, (-0.2, 0.2), "abstained", "not above zero", 40)
every_dtype = pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])


def made(scope="global", *, task=None, query_id=None, seed=0, alpha=0.75, evidence=UNGATED, dtype=np.float64):
    """An offset with a random vector."""
    vector = np.random.default_rng(seed).normal(size=WIDTH).astype(dtype) / 3
    return Offset(scope, vector, alpha, 3, evidence, Certificate(0.5, 1e-5, 12, converged=True), task, query_id)


def some(*offsets):
    return Offsets(offsets, width=WIDTH, settings={"scope": "auto", "ridge": 0.3})


def everything(dtype=np.float64):
    """A global offset, two tasks' and private ones, one id in two tasks."""
    return some(
        made(seed=1, dtype=dtype),
        made("task", task="billing", seed=2, dtype=dtype, evidence=PUBLISHED),
        made("task", task="quiet", seed=3, alpha=0.0, dtype=dtype, evidence=replace(ABSTAINED, against=True)),
        made("query", task="billing", query_id="only", seed=4, dtype=dtype),
        made("query", task="billing", query_id="both", seed=5, dtype=dtype),
        made("query", task="travel", query_id="both", seed=6, dtype=dtype),
        made("query", task="default", query_id="plain", seed=7, dtype=dtype),
    )


def queries(m=5, *, dtype=np.float64, seed=9, width=WIDTH):
    """Query vectors of various lengths."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(m, width)) * rng.uniform(0.1, 10.0, size=(m, 1))).astype(dtype)


def moved(x, offset):
    """The served vector, written out: ||x|| unit(unit(x) + alpha v)."""
    length = np.linalg.norm(x)
    direction = x / length + offset.alpha * offset.vector
    return length * direction / np.linalg.norm(direction)


class TestApply:
    """What happens to a query vector."""

    def test_adds_the_dosed_offset_and_keeps_the_norm(self):
        """Every row becomes ||x|| unit(unit(x) + alpha v)."""
        offsets, x = some(made()), queries()

        assert_allclose(offsets.apply(x), [moved(row, offsets["global"]) for row in x], rtol=1e-12)

    @settings(max_examples=20, deadline=None, derandomize=True)
    @given(x=arrays(np.float64, WIDTH, elements=st.floats(-5, 5)).filter(lambda x: np.linalg.norm(x) > 0.1))
    def test_ranks_as_the_additive_score_does(self, x):
        """Documents rank by the result as they rank by x·z + alpha v·z."""
        offsets = some(made())
        documents = queries(20, seed=1)
        documents /= np.linalg.norm(documents, axis=1, keepdims=True)
        additive = documents @ (x / np.linalg.norm(x)) + 0.75 * documents @ offsets["global"].vector

        assert_array_equal(np.argsort(documents @ offsets.apply(x)), np.argsort(additive))

    @every_dtype
    def test_returns_the_dtype_it_got(self, dtype):
        offsets, x = some(made()), queries(dtype=dtype)
        shifted = offsets.apply(x)

        assert (x.dtype, x.shape) == (shifted.dtype, shifted.shape)
        assert_allclose(
            shifted,
            offsets.apply(x.astype(np.float64)),
            rtol=8 * np.finfo(dtype).eps,
            atol=1e-2 if dtype == np.float16 else 1e-6,
        )

    def test_takes_one_vector_many_or_none(self):
        """A (d,) vector comes back as (d,), equal to its row among many; an empty batch is an empty batch."""
        offsets, x = some(made()), queries()

        assert offsets.apply(x[2]).shape == (WIDTH,)
        assert_allclose(offsets.apply(x[2]), offsets.apply(x)[2], rtol=1e-14)
        assert offsets.apply(np.empty((0, WIDTH))).shape == (0, WIDTH)

    @pytest.mark.parametrize("task", [None, "billing", ["billing", "quiet"]])
    def test_returns_lists_for_lists(self, task):
        """Of rows, of one vector, and of whole numbers."""
        offsets, x = everything(), queries(2)
        shifted = offsets.apply(x.tolist(), task=task)

        assert {float} == {type(value) for row in shifted for value in row}
        assert offsets.apply(x, task=task).tolist() == shifted
        assert offsets.apply(x[0]).tolist() == offsets.apply(x[0].tolist())
        assert offsets.apply([1.0, 2.0, 0.0, 0.0, 0.0, 0.0]) == offsets.apply([1, 2, 0, 0, 0, 0])

    @every_dtype
    @pytest.mark.parametrize("task", [None, "billing", ["billing", "quiet", "travel", "billing", "other"]])
    def test_modifies_nothing(self, dtype, task):
        x = queries(dtype=dtype)
        before = x.copy()
        x.flags.writeable = False
        everything().apply(x, task=task)

        assert_array_equal(x, before)

    @pytest.mark.parametrize(
        ("dtype", "scale"),
        [(np.float64, 10.0**power) for power in (-300, -160, 160, 300)]
        + [(np.float32, 10.0**power) for power in (-30, -20, 20, 30)],
    )
    def test_turns_vectors_of_any_length(self, dtype, scale):
        """Extreme lengths neither overflow nor vanish, also where the squared norm leaves the precision."""
        offsets, x = some(made()), queries()
        expected, long = offsets.apply(x), (x * scale).astype(dtype)
        near = {"rtol": 1e-9} if dtype == np.float64 else {"rtol": 1e-5, "atol": 1e-6}

        assert_allclose(offsets.apply(long) / scale, expected, **near)
        assert_allclose(offsets.apply(long[0]) / scale, expected[0], **near)

    def test_returns_the_base_vector_where_the_sum_vanishes(self):
        """An offset that cancels a query leaves it, bit for bit, alone or in a batch."""
        x = np.array([[2.0, 0, 0, 0, 0, 0], [0, 3.0, 0, 0, 0, 0]])
        offsets = some(replace(made(), vector=-x[0], alpha=0.5))

        assert_array_equal(offsets.apply(x[0]), x[0], strict=True)
        assert_array_equal(offsets.apply(x)[0], x[0], strict=True)
        assert (offsets.apply(x)[1] != x[1]).any()

    @pytest.mark.parametrize(
        ("value", "got"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity"), (0.0, "a zero vector")]
    )
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_rejects_bad_vectors(self, value, got, dtype):
        """A NaN, infinite or zero vector is an error that names its row, with or without an offset, and alone too."""
        many, alone = queries(dtype=dtype), np.full(WIDTH, value, dtype)
        many[3] = value

        for x, tasks, row in ((many, ("billing", "nobody", ["billing"] * 5), 3), (alone, ("billing", "quiet"), 0)):
            for task in tasks:
                with pytest.raises(VectorError, match=f"^X: expected finite, .* got {got} in row {row}$"):
                    everything().apply(x, task=task)

    @pytest.mark.parametrize("shape", [(WIDTH + 1,), (2, WIDTH - 1), (2, 2, WIDTH), ()])
    def test_rejects_other_widths(self, shape):
        message = f"X: expected shape (m, {WIDTH}) or ({WIDTH},), got {shape}"

        with pytest.raises(VectorError, match=f"^{re.escape(message)}$"):
            some(made()).apply(np.ones(shape))


RAW = {
    "alpha 0 globally": (some(made(alpha=0.0)), {}),
    "alpha 0 for the query": (some(made("query", task="a", query_id="q", alpha=0.0)), {"task": "a", "query_id": "q"}),
    "no task named": (some(made("task", task="a")), {}),
    "unknown tasks by row": (some(made("task", task="a")), {"task": ["b", "c", "b", "default", "c"]}),
    "unknown query": (some(made("query", task="default", query_id="q")), {"query_id": "other"}),
    "task abstained": (some(made("task", task="a", evidence=ABSTAINED)), {"task": "a"}),
    "query abstained": (
        some(made("query", task="a", query_id="q", evidence=ABSTAINED)),
        {"task": "a", "query_id": "q"},
    ),
    "no offsets": (some(), {}),
}


class TestApplyToRawVectors:
    """Where there is nothing to add, the base vector comes back bit for bit."""

    @every_dtype
    @pytest.mark.parametrize(("offsets", "keys"), RAW.values(), ids=RAW)
    def test_bit_for_bit(self, offsets, keys, dtype):
        """Values and dtype are those of the input, also among lengths far apart."""
        x = queries(dtype=dtype)
        x[0] *= dtype(1000 if dtype == np.float16 else 1e17)

        assert_array_equal(offsets.apply(x, **keys), x, strict=True)

    def test_a_task_that_decided_nothing_keeps_the_global_offset(self):
        """Only evidence against any offset takes it away."""
        undecided = made("local", task="open", alpha=0.0, evidence=ABSTAINED)
        offsets = some(made(seed=1), undecided)

        assert offsets.find("open") is offsets["global"]
        assert some(made(seed=1), replace(undecided, evidence=replace(ABSTAINED, against=True))).find("open") is None

    def test_in_a_mixed_batch(self):
        offsets, x = everything(), queries(dtype=np.float32)
        shifted = offsets.apply(x, task=["billing", "quiet", "billing", "quiet", "billing"])

        assert_array_equal(shifted[[1, 3]], x[[1, 3]], strict=True)
        assert (shifted[[0, 2, 4]] != x[[0, 2, 4]]).any(axis=1).all()


WITHHELD = some(made("task", task="a"), made("query", task="a", query_id="q", evidence=ABSTAINED))
IN_THREE = some(*(made("query", task=task, query_id="q") for task in "abc"))


class TestLookup:
    """query, then task, then global, then raw."""

    @pytest.mark.parametrize(
        ("offsets", "task", "query_id", "expected"),
        [
            (everything(), "billing", "only", "query:billing/only"),
            (everything(), None, "only", "query:billing/only"),
            (everything(), "travel", "only", "global"),
            (everything(), "billing", "both", "query:billing/both"),
            (everything(), "travel", "both", "query:travel/both"),
            (everything(), None, "both", "global"),
            (everything(), None, "plain", "query:plain"),
            (everything(), "default", "plain", "query:plain"),
            (everything(), "billing", "unknown", "task:billing"),
            (everything(), "billing", None, "task:billing"),
            (everything(), "travel", "unknown", "global"),
            (everything(), "travel", None, "global"),
            (everything(), None, None, "global"),
            (some(made("task", task="default")), None, None, "task:default"),
            # An id that several tasks know is never found alone.
            (IN_THREE, None, "q", None),
            *((IN_THREE, task, "q", f"query:{task}/q") for task in "abc"),
            # A private offset that was not published leaves the task its own, and a task that abstained has none.
            (WITHHELD, "a", "q", "task:a"),
            (everything(), "quiet", None, None),
            (everything(), "quiet", "unknown", None),
        ],
    )
    def test_order(self, offsets, task, query_id, expected):
        """The narrowest served offset wins; an id alone suffices where it is unambiguous."""
        offset = offsets.find(task, query_id)

        assert expected == (offset and offset.key)

    def test_rows_of_a_batch_are_served_as_if_alone(self):
        offsets, x = everything(), queries(6)
        tasks = ["billing", "travel", "quiet", "billing", "nobody", "travel"]
        ids = ["only", "both", "x", "both", "x", "x"]
        expected = [offsets.apply(x[row], task=tasks[row], query_id=ids[row]) for row in range(6)]

        assert_allclose(offsets.apply(x, task=tasks, query_id=ids), expected, rtol=1e-14)

    def test_one_key_may_serve_all_rows(self):
        """A task for all rows goes with an id per row, and an id for all with a task per row."""
        offsets, x = everything(), queries(2)

        assert_array_equal(
            offsets.apply(x, task="billing", query_id=["only", "both"]),
            offsets.apply(x, task=["billing", "billing"], query_id=["only", "both"]),
        )
        assert_array_equal(
            offsets.apply(x, task=["billing", "travel"], query_id="both"),
            offsets.apply(x, task=["billing", "travel"], query_id=["both", "both"]),
        )

    @pytest.mark.parametrize("name", ["task", "query_id"])
    @pytest.mark.parametrize(("x", "rows"), [(queries(5), 5), (queries()[0], 1)])
    def test_needs_one_key_per_row(self, name, x, rows):
        keys = {name: ["billing"] * rows}

        assert_array_equal(everything().apply(x, **keys), everything().apply(x, **{name: "billing"}))
        with pytest.raises(InputError, match=f"^{name}: expected one per query vector, {rows} in X, got 2$"):
            everything().apply(x, **{name: ["a", "b"]})


class TestMapping:
    """Offsets by key."""

    def test_keys_read_as_scopes(self):
        """Keys are global, task:NAME, query:TASK/ID, and query:ID for the default task or an id of one task alone."""
        offsets = everything()
        expected = [
            "global",
            "task:billing",
            "task:quiet",
            "query:billing/only",
            "query:billing/both",
            "query:travel/both",
            "query:plain",
        ]

        assert expected == list(offsets)
        assert expected == [offset.key for offset in everything().values()]
        assert offsets["query:billing/only"] is offsets["query:only"]
        assert "query:both" not in offsets

    @pytest.mark.parametrize(
        ("offsets", "key", "line"),
        [
            *((everything(), key, key) for key in ("task:nobody", "query:nobody", "nobody")),
            (everything(), "billing", "offsets: expected a key such as 'task:billing', got 'billing'"),
            (everything(), "nobody", r"expected a key such as 'global', 'task:billing'.*, got 'nobody'"),
            (some(), "a", "expected no key of an empty one, got 'a'"),
        ],
    )
    def test_an_unknown_key_names_those_there_are(self, offsets, key, line):
        """Those of the same name first: a task's name alone is no key, since it may have two offsets."""
        with pytest.raises(KeyError, match=f"^(offsets: .*)?{line}"):
            offsets[key]

    def test_every_value_fits_a_screen(self):
        """No representation prints a vector: the facts, in a few lines."""
        wide = np.random.default_rng(0).normal(size=999)
        evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "steady", code="TTT-G00")
        moving = KernelMap(wide[None] / np.linalg.norm(wide), wide[None], 0.25)
        local = Offset("local", wide, 0.9, 9, evidence, task="billing", map=moving)
        served = Served("q", wide, [Candidate("d", wide, "text", 0.5)] * 50, "how?")
        rewards = Rewards.from_arrays([wide] * 99, [[wide, -wide]] * 99, [[0.0, 1.0]] * 99, embedder="e")
        shown = [local, moving, served, *served.candidates[:1], rewards, Offsets([local], width=999), evidence]

        assert repr(local) == f"Offset('local:billing', 9 rewarded queries, dose 0.90, width 999, {evidence})"
        assert repr(moving) == "KernelMap(1 landmarks, width 999, bandwidth 0.25)"
        assert repr(everything()) == "Offsets(7 offsets, 6 served, width 6)"
        assert [line for line in map(repr, shown) if len(line) > 300 or "\n" in line] == []

    @pytest.mark.parametrize(
        "names", [(("a/b", "c"), ("a", "b/c")), (("default", "a/c"), ("a", "c"))], ids=["named tasks", "default task"]
    )
    def test_names_with_slashes_do_not_collide(self, names):
        offsets = some(*(made("query", task=task, query_id=query_id) for task, query_id in names))

        assert names == tuple((o.task, o.query_id) for o in (offsets.find(*name) for name in names))

    @pytest.mark.parametrize(
        ("offset", "error", "message"),
        [
            (made("task", task="quiet"), InputError, "each key once, got 'task:quiet' twice$"),
            (replace(made(), vector=np.ones(7)), VectorError, r"vectors of shape \(6,\), got \(7,\) in 'global'"),
            (replace(made(), vector=np.full(WIDTH, np.nan)), VectorError, "finite vectors, got NaN or infinity"),
            (replace(made(), vector=np.full(WIDTH, 1e4)), VectorError, "norms of at most 100, got 24494.9 in 'global'"),
            (replace(made(), vector=np.full(WIDTH, 1e300)), VectorError, r"norms of at most 100, got 2\.4"),
            (replace(made(), vector=np.full(WIDTH, 1e30, np.float32)), VectorError, r"norms of at most 100, got 2\.4"),
            (replace(made(), alpha=1.5), InputError, r"alpha in \[0, 1\], got 1\.5 in 'global'"),
            (replace(made(), alpha=float("nan")), InputError, r"alpha in \[0, 1\], got nan"),
            (replace(made(), scope="user"), InputError, "scope global, task, local, query, got 'user'"),
            (replace(made(), task="a"), InputError, "a task below global and a query id at query, got 'global'"),
            (made("query", task="a"), InputError, "a task below global and a query id at query"),
        ],
    )
    def test_rejects_bad_offsets(self, offset, error, message):
        with pytest.raises(error, match=f"^offsets: expected {message}"):
            some(*everything().values(), offset)

    @pytest.mark.parametrize(
        ("evidence", "expected"),
        [
            (PUBLISHED, "published: +.050 nDCG@10 [+.010, +.090] on 30 held-out queries; held out"),
            (UNGATED, "ungated: made for a test"),
            (
                ABSTAINED,
                (
                    "abstained: about 40 more queries would settle it; "
                    "+.010 nDCG@10 [-.200, +.200] on 3 held-out queries; not above zero"
                ),
            ),
            (
                replace(PUBLISHED, interval=(-10.5, 10.5)),
                "published: +.050 nDCG@10 [-10.500, +10.500] on 30 held-out queries; held out",
            ),
            (replace(ABSTAINED, reason=NOTHING_TO_GAIN), f"nothing to gain: {NOTHING_TO_GAIN}"),
            (
                replace(ABSTAINED, reason=NOTHING_TO_GAIN, needed=None, withheld=("a",)),
                f"abstained: {NOTHING_TO_GAIN}",
            ),
        ],
    )
    def test_evidence_reads_as_one_line(self, evidence, expected):
        assert expected == str(evidence)

    @pytest.mark.parametrize("verdict", ["published", "abstained", "ungated"])
    @pytest.mark.parametrize("reason", ["vouched for by its store", "vouched for by My" + "Very" * 30 + "LongReranker"])
    @pytest.mark.parametrize("needed", [None, 12_345])
    def test_evidence_is_a_sentence_of_at_most_120_characters(self, verdict, reason, needed):
        """Whatever it tells; the statistics behind it have the rest, and a success has no code."""
        evidence = Evidence(
            12_345, -0.01, (-0.2, 0.2), verdict, reason, needed, "TTT-G03", ("a", "b", "c", "d"), 3, 0.5
        )
        noted = replace(evidence, left_out=4).noted("a local offset").noted(None)

        assert len(str(evidence)) <= 120
        assert str(evidence).endswith(" [TTT-G03]") is (verdict == "abstained")
        assert all(part in f"{evidence} {noted.statistics}" for part in (evidence.figure, reason))
        assert noted.statistics.endswith(
            "a local offset; from 3 sources; dose times 0.50, as far as labels confirm the judge's order; without what "
            "was said of a, b, c and 1 more [TTT-G04]. 4 queries whose rewards do not differ are left out."
        )


def with_maps():
    """Constant and local offsets of two tasks, each with landmarks of its own."""
    rows = np.eye(WIDTH)
    maps = {"a": KernelMap(rows[:3], rows[3:] / 7, 0.5), "b": KernelMap(rows[4:], rows[:2] / 3, 0.25)}
    local = [replace(made("local", task=task, seed=8), map=map_) for task, map_ in maps.items()]
    return some(*(made("task", task=task, alpha=0.0) for task in maps), *local)


# Offsets of both precisions, of which one file takes the finer.
MIXED = [made("task", task=f"t{n}", alpha=n / 30, seed=n, dtype=np.float32 if n % 3 else np.float64) for n in range(30)]


class TestFile:
    """One safetensors file."""

    @pytest.mark.parametrize(
        "build",
        [everything, lambda: everything(np.float32), lambda: some(*MIXED), some, with_maps, learned],
        ids=["float64", "float32", "both", "none", "maps", "all that a judge teaches"],
    )
    def test_a_round_trip_changes_no_bit(self, tmp_path, build):
        """Order, vectors in their precisions, maps, evidence, certificates and settings survive, and what is served."""
        offsets, path = build(), tmp_path / "offsets.safetensors"
        offsets.save(path)
        loaded = Offsets.load(str(path))
        tasks, ids = ["billing", "travel", "quiet", "default", "nobody", "t7"], ["both"] * 6

        assert offsets.width == loaded.width
        assert {"salt": None} | loaded.settings == {"salt": loaded.settings.get("salt")} | offsets.settings
        for offset, again in zip(offsets.values(), loaded.values(), strict=True):
            assert again.vector.dtype == np.result_type(*(row.vector for row in offsets.values()))
            assert_equal(asdict(again), asdict(replace(offset, query_id=again.query_id)))
        for x in (queries(6, dtype=dtype, width=offsets.width) for dtype in (np.float16, np.float32, np.float64)):
            for keys in ({}, {"task": tasks, "query_id": ids}):
                before, after = offsets.apply(x, **keys), loaded.apply(x, **keys)
                assert after.dtype == before.dtype
                # A product with landmarks depends on where in memory they lie.
                assert_allclose(after, before, rtol=0.0, atol=1e-13 if any(o.map for o in offsets.values()) else 0.0)

    def test_names_no_query(self, tmp_path, planted):
        """Ids, which may be texts or name other tenants, are not read in a file; who knows one finds its offset."""
        ids = [f"acme:\0my secret question {number}" for number in range(12)]
        rewards = replace(planted(12, dtype=np.float32), query_ids=np.array(ids))
        for scope in ("local", "query"):
            offsets, path = fit(rewards, scope=scope, gate=False), tmp_path / scope
            offsets.save(path)
            Offsets.load(path).save(path)  # as it was loaded
            loaded, x = Offsets.load(path), rewards.query_vectors
            assert [word for word in (b"acme", b"secret") if word in path.read_bytes()] == []
            assert_array_equal(loaded.apply(x, query_id=ids), offsets.apply(x, query_id=ids), strict=True)
        assert loaded[f"query:{ids[3]}"] is loaded.find("default", ids[3])
        assert loaded[loaded[f"query:{ids[3]}"].key] is loaded.find(None, ids[3])
        offsets.save(tmp_path / "again")
        assert not loaded.keys() & Offsets.load(tmp_path / "again").keys()

    def test_holds_vectors_and_json_only(self, tmp_path):
        """The file is a length, a JSON header and raw numbers: nothing in it can be executed."""
        path = tmp_path / "offsets.safetensors"
        everything(np.float32).save(path)
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])

        assert {"vectors", "offsets", "__metadata__"} == set(header)
        assert header["__metadata__"]["format_version"] == "1"
        first, last = header["offsets"]["data_offsets"]
        assert isinstance(json.loads(content[8 + size + first : 8 + size + last]), list)
        assert len(content) == 8 + size + 7 * WIDTH * 4 + last - first

    def test_is_replaced_as_a_whole(self, tmp_path):
        """A reader of the old file keeps the old file, and nothing but the new one stays in the folder."""
        path = tmp_path / "offsets.safetensors"
        some(made()).save(path)
        before = path.read_bytes()
        with path.open("rb") as reader:
            everything().save(path)
            seen = reader.read()

        assert before == seen
        assert len(Offsets.load(path)) == 7
        assert [path] == list(tmp_path.iterdir())


def recorded(offset):
    (record,) = json.loads(to_tensors(some(offset).to_bytes())["offsets"].tobytes())
    return record


HEADER = {"format": "tttembed-offsets", "format_version": "1", "settings": "{}"}


def content(records, vectors=None, **header):
    """An offsets file of these *records*, whatever they are, and with this *header*; None leaves a part of it out."""
    header = HEADER | header
    text = records if isinstance(records, bytes) else json.dumps(records).encode()
    tensors = {"vectors": np.ones((1, WIDTH), np.float32) if vectors is None else vectors}
    tensors["offsets"] = np.frombuffer(text, np.uint8)
    return to_safetensors(tensors, metadata={name: value for name, value in header.items() if value is not None})


GOOD = [recorded(made("task", task="a"))]
WRONG_SETTINGS = ("[1]", '"x"', '{"judge": null}', '{"judge": ["a"]}')
WRONG_HEADERS = (b"[]", b'{"__metadata__": [1]}', b"7")
FINITE, RISING, ONE_OF = "a finite number or none", "two rising numbers or none", "one of published, abstained, ungated"
WHOLE, NAME = "a whole number from 0 to 2147483647", "a name of at most 512 bytes or none"
CERTIFICATE = {"objective": 0.1, "gradient_norm": 0.1, "evaluations": 3, "converged": True}
# What a field must be, and values that are not that.
WRONG = {
    ("evidence.gain", f"{FINITE} as evidence.gain of 'task:a', got"): ["x", 10**400, float("nan")],
    ("evidence.interval", f"{RISING} as evidence.interval"): [
        "ab",
        [0, 0.1, 0.2],
        [0.2, 0.1],
        [0.1, float("nan")],
        3,
        [0, 10**400],
    ],
    ("evidence.verdict", f"{ONE_OF} as evidence.verdict of 'task:a', got"): ["foo", []],
    ("evidence.reason", "a text as evidence.reason"): [None],
    ("evidence.needed", "a count or none as evidence.needed"): ["all", 10**400, -1],
    ("evidence.n", f"{WHOLE} as evidence.n"): [0.5],
    ("n", f"{WHOLE} as n of 'task:a', got"): ["many", -3, 2**31, None, True],
    ("alpha", "a finite number as alpha"): ["much", True],
    ("task", f"{NAME} as task"): [5, "a" * 513, "a\0b", "\ud800"],
    ("query_id", f"{NAME} as query_id"): [["a"], "é" * 257],
    ("evidence", "damaged or foreign"): [7, {"certainty": 1}, None],
    ("certificate", "as certificate.o"): [CERTIFICATE | {"objective": "x"}],
    ("certificate", "as certificate.c"): [CERTIFICATE | {"converged": 1}],
}


class TestBadFile:
    """Whatever is not a whole offsets file is one error in one line."""

    def assert_rejected(self, path, content, message):
        """Loading *content* raises an `OffsetFileError` of one line that begins with the path."""
        path.write_bytes(content)

        with pytest.raises(OffsetFileError, match=f"^{re.escape(str(path))}: expected .*{message}") as caught:
            Offsets.load(path)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            *((np.random.default_rng(0).bytes(size), "damaged or foreign") for size in (0, 3, 500)),
            *((everything().to_bytes()[:cut], "damaged or foreign") for cut in (40, 900, -900, -3)),
            *((len(header).to_bytes(8, "little") + header, "damaged or foreign") for header in WRONG_HEADERS),
            *((content(GOOD, format=name), "of format tttembed-offsets, got ") for name in (None, "pt")),
            (content(GOOD, settings=" " * 2**20), "at most 1048576"),
            (content(GOOD, format_version="2"), "format version 1 or older, got 2; upgrade tttembed-rag$"),
            *((content(GOOD, format_version=version), "damaged or foreign") for version in (None, "new")),
            *((content(GOOD, settings=text), "texts and numbers by name") for text in WRONG_SETTINGS),
            (content(GOOD, settings=None), "damaged or foreign"),
            *((content(records), "") for records in (b"not json", [{}], [1], [], [{}] * 2)),
            *((content(GOOD, np.ones(shape)), "") for shape in ((1, 0), (WIDTH,))),
            (content(GOOD, np.ones((1, WIDTH), np.int64)), ""),
            (content(GOOD, np.full((1, WIDTH), np.nan)), "finite vectors, got NaN or infinity in 'task:a'"),
        ],
        ids=lambda value: "bytes" if isinstance(value, bytes) else None,  # the same in all processes of a run
    )
    def test_is_refused(self, tmp_path, content, message):
        """Little, cut or random bytes, a newer version, and a header, settings, records or vectors of another kind."""
        self.assert_rejected(tmp_path / "file", content, message)

    def test_an_error_of_bytes_has_the_given_name(self):
        with pytest.raises(OffsetFileError, match=r"^row 7: expected an offsets file"):
            Offsets.from_bytes(b"no", "row 7")

    def test_others_have_their_turns_while_a_large_file_is_read(self):
        """Reading lets them run, where threads that compute are never interrupted."""
        content = some(*(made("query", task="t", query_id=str(number)) for number in range(1000))).to_bytes()
        turns, done, interval = [], Event(), sys.getswitchinterval()

        def take_turns():
            while not done.is_set():
                turns.append(time.sleep(0))

        other = Thread(target=take_turns)
        sys.setswitchinterval(100)
        try:
            other.start()
            before = len(turns)
            Offsets.from_bytes(content)
            taken = len(turns) - before
        finally:
            done.set()
            sys.setswitchinterval(interval)
            other.join()

        assert taken > 10

    @pytest.mark.parametrize(
        ("part", "message", "value"), [(*field, value) for field, values in WRONG.items() for value in values]
    )
    def test_with_a_record_that_is_wrong(self, tmp_path, part, message, value):
        """What is known of an offset has the kind and range that those who show it count on."""
        record = recorded(made("task", task="a"))
        fields = record["evidence"] if part.startswith("evidence.") else record
        fields[part.removeprefix("evidence.")] = value

        self.assert_rejected(tmp_path / "record", content([record]), message)

    @pytest.mark.parametrize(
        ("scope", "odd", "message"),
        [
            ("global", {"evidence": replace(PUBLISHED, gain=np.nan)}, f"{FINITE} as evidence.gain of 'global', got"),
            ("task", {"task": "a" * 513}, f"{NAME} as task of 'task:aaa"),
        ],
    )
    def test_is_not_written(self, scope, odd, message):
        with pytest.raises(InputError, match=f"^offsets: expected {message}"):
            some(made(scope, **odd)).to_bytes()

    def test_too_large(self, tmp_path, monkeypatch):
        path = tmp_path / "offsets.safetensors"
        some(made()).save(path)
        monkeypatch.setattr("tttembed_rag.offsets.file.MAX_BYTES", 10)

        with pytest.raises(OffsetFileError, match="expected at most 10 bytes, got"):
            Offsets.load(path)

    def test_pickled(self, tmp_path):
        """By Python's first protocol, which makes the folder of the mark where it is unpickled."""
        mark = tmp_path / "mark"
        pickled = f"cos\nmkdir\n(V{mark}\ntR.".encode()

        self.assert_rejected(tmp_path / "pickle", pickled, "damaged or foreign")
        assert not mark.exists()
        pickle.loads(pickled)  # noqa: S301 - the mark would have been made
        assert mark.exists()

    @pytest.mark.parametrize("name", ["absent", "."])
    def test_missing(self, tmp_path, name):
        path = tmp_path / name

        with pytest.raises(OffsetFileError, match=f"^{re.escape(str(path))}: expected an offsets file, found none$"):
            Offsets.load(path)


@pytest.mark.parametrize(("settings", "warned"), [({}, False), ({"spread": 0.9}, False), ({"spread": 0.2}, True)])
def test_cosines_that_lie_close_together_are_told(capsys, settings, warned):
    tell(Offsets([], width=4, settings=settings), everything=False, verbose=False, as_json=False)

    assert ("cosines: 0.83 on average" in capsys.readouterr().out) == warned
