"""The commands that work on a store: what they print, what they change, how they refuse."""

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from tttembed_store.sql import Candidate, Served, open_store
from tttembed_store.worker import Probe

from tests.traffic import JUDGE, facts, learned, traffic
from tttembed_rag import Evidence, Offset, Offsets, fit
from tttembed_rag.cli import main
from tttembed_rag.cli.telling import with_origin
from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.judging import Paid


def run(*arguments):
    """What the command does with *arguments*, of which the first names it."""
    name, *rest = arguments
    return CliRunner().invoke(main, [*name.split(), *map(str, rest)])


@pytest.fixture
def url(sqlite_url):
    """A store with 20 rewarded queries."""
    with open_store(sqlite_url) as store:
        store.observe(traffic(20), judge=JUDGE)
    return sqlite_url


@pytest.fixture
def file(url, tmp_path):
    """What they teach, saved."""
    path = tmp_path / "offsets.safetensors"
    with open_store(url) as store:
        with_origin(learned(store), embedder="model-a").save(path)
    return path


def test_publish_and_roll_back(url, file):
    """Each says what is live now, and what is served; versions lists them with their evidence."""
    publish, rollback = ["store publish", file], ["store rollback"]
    results = [run(*command, "--store", url, "--by", "me") for command in (publish, publish, rollback)]
    listed = [json.loads(line) for line in run("store versions", "--store", url, "--json").output.splitlines()]

    assert [result.output.splitlines() for result in results] == [
        [f"version {number} is live: 2 of 2 offsets served", f"served to the shared tenant: version {number}"]
        for number in (1, 2, 1)
    ]
    assert [(line["number"], line["aliases"]) for line in listed] == [(2, []), (1, ["live"])]


def test_show_takes_a_store(url, file):
    """Its versions, and each offset of the live one."""
    run("store publish", file, "--store", url, "--by", "somebody")

    lines = run("show", url).output.splitlines()

    assert "somebody" in lines[0]
    assert "live" in lines[0]
    assert [line.partition(":")[0] for line in lines[1:]] == ["rewards", "task", "task", "served to the shared tenant"]


def test_export_and_publish_keep_the_embedding_model(url, tmp_path):
    """And its probe: whoever serves vectors of another model keeps base vectors, and a worker sees it change."""
    out = tmp_path / "exported.safetensors"
    with open_store(url) as store:
        probe = Probe("model-a", np.eye(6, dtype=np.float32)).to_json()
        before = store.registry.publish(
            with_origin(learned(store), embedder="", probe=""), by="me", embedder="model-a", probe=probe
        )
        run("store export", out, "--store", url)
        run("store publish", out, "--store", url)
        after = store.registry.version()

    assert after is not None
    assert (2, "model-a", probe) == (after.number, after.embedder, after.probe)
    assert before.offsets.settings == after.offsets.settings
    assert facts(Offsets.load(out)) == facts(before.offsets)


def test_publish_asks_for_the_embedding_model(url, tmp_path):
    """A file that does not say it is published with a name alone: offsets of one model are noise to another."""
    file = tmp_path / "unnamed.safetensors"
    with open_store(url) as store:
        with_origin(learned(store), embedder="", probe="").save(file)
        refused = run("store publish", file, "--store", url)
        run("store publish", file, "--store", url, "--embedder", "model-a")

        assert [version.embedder for version in store.registry.versions()] == ["model-a"]
    assert refused.exit_code == 2
    assert "--embedder: expected the name of the model whose vectors" in refused.output


def test_fit_keeps_the_embedding_model_for_publish(sqlite_url, tmp_path):
    """The model of the vectors that were learned from; to publish them as another's is refused."""
    out = tmp_path / "learned.safetensors"
    with open_store(sqlite_url) as store:
        store.observe([replace(query, embedder="model-a") for query in traffic(20)], judge=JUDGE)
        run("fit", sqlite_url, "--out", out, "--scope", "task", "--no-gate")
        run("store publish", out, "--store", sqlite_url)
        refused = run("store publish", out, "--store", sqlite_url, "--embedder", "model-b")

        assert [version.embedder for version in store.registry.versions()] == ["model-a"]
    assert refused.exit_code == 2
    assert f"Error: --embedder: expected that of {out}, 'model-a', got 'model-b'\n" in refused.output


@pytest.mark.parametrize("command", ["store versions", "show"])
def test_a_tenant_without_versions_is_told_what_it_is_served(url, command):
    """Base vectors, or the shared version, whatever its own list says."""
    arguments = [command, url] if command == "show" else [command, "--store", url]
    with open_store(url) as store:
        before = run(*arguments, "--tenant", "acme").output.splitlines()
        store.registry.publish(learned(store), by="me")
        after = run(*arguments, "--tenant", "acme").output.splitlines()

    assert before == ["no versions of tenant 'acme'", "served to tenant 'acme': base vectors, nothing was published"]
    assert (after[0], after[-1]) == (before[0], "served to tenant 'acme': version 1 of the shared tenant")


@pytest.mark.parametrize(
    ("halt", "arguments", "line"),
    [
        *(
            ({"note": "incident"}, arguments, f"{whose}: base vectors, halted for all tenants: incident")
            for arguments, whose in (
                (["store versions"], "the shared tenant"),
                (["store rollback", "--to", "1"], "the shared tenant"),
                (["store resume", "--tenant", "acme"], "tenant 'acme'"),
            )
        ),
        (
            {"tenant": "", "note": "wrong"},
            ["store versions", "--tenant", "acme"],
            "tenant 'acme': base vectors, halted for the shared tenant: wrong",
        ),
        ({"tenant": "", "note": "wrong"}, ["store versions", "--tenant", "own"], "tenant 'own': version 2"),
    ],
)
def test_a_halt_is_told_by_whatever_is_asked(url, halt, arguments, line):
    """With whom it is for, and why; one of the shared tenant is not told to a tenant with a version of its own."""
    with open_store(url) as store:
        for tenant in ("", "own"):
            store.registry.publish(learned(store), by="me", tenant=tenant)
        store.registry.halt(by="me", **halt)

    assert run(*arguments, "--store", url).output.splitlines()[-1] == f"served to {line}"


def test_resume_says_who_stays_halted(url):
    """A halt of all and one of a tenant are lifted each by itself."""
    with open_store(url) as store:
        store.registry.publish(learned(store), by="me")
    for whose in ([], ["--tenant", "acme"]):
        run("store halt", "--store", url, "--by", "me", "--note", "wrong", *whose)

    everybody, acme = run("store resume", "--store", url), run("store resume", "--store", url, "--tenant", "acme")

    assert everybody.output.splitlines() == [
        "resumed: all tenants",
        "still halted, each by itself: tenant 'acme'",
        "served to the shared tenant: version 1",
    ]
    assert acme.output.splitlines() == [
        "resumed: tenant 'acme'",
        "served to tenant 'acme': version 1 of the shared tenant",
    ]


def test_versions_are_listed_without_their_vectors(url):
    """A list of twelve takes less memory than one of them."""
    width, evidence = 100_000, Evidence(9, None, None, "ungated", "made for a test")
    large = Offsets([Offset("global", np.full(width, 1e-3, np.float32), 0.9, 9, evidence)], width=width)
    with open_store(url) as store:
        for _ in range(12):
            store.registry.publish(large, by="me")

    run("store versions", "--store", url)
    tracemalloc.start()
    listed = run("store versions", "--store", url).output
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert listed.count("made for a test") == 12
    assert peak < 4 * width


def test_ask_again_takes_back_what_was_declined(url):
    """Pairs wait again, and queries that the judge failed at are due; `counts` says why it failed."""
    with open_store(url) as store:
        queue = store.judge_queue
        [query, other, *_] = waiting = queue.waiting("later")
        keys = [pair_key("later", query.query, shown.text) for shown in query.candidates]
        queue.answers(waiting).put("later", dict.fromkeys(keys, Paid(None)))
        queue.failed("later", {other.query_id: "413 too large"})
        before = len(queue.waiting("later", due=True))
        counted = run("store counts", "--store", url).output
        result = run("store retry", "--store", url, "--judge", "later", "--by", "me")

        assert result.output == f"{len(keys)} declined pairs wait again for later\n"
        assert "1 queries wait that later failed at: 413 too large" in counted
        assert len(queue.waiting("later", due=True)) == before + 2 == len(waiting)
        assert store.changes.lines()[0].action == "ask again"


def test_a_new_store_is_its_owners_alone(tmp_path):
    """Its file holds users' texts; a file that is there keeps its mode."""
    open_store(f"sqlite:///{tmp_path}/new.db").close()
    (tmp_path / "there.db").touch(0o644)
    open_store(f"sqlite:///{tmp_path}/there.db").close()

    assert [oct((tmp_path / name).stat().st_mode & 0o777) for name in ("new.db", "there.db")] == ["0o600", "0o644"]


def test_fit_learns_from_a_store(url, tmp_path):
    """What `fit` learns from the same rewards."""
    out = tmp_path / "learned.safetensors"

    result = run("fit", url, "--out", out, "--scope", "task", "--no-gate")

    with open_store(url) as store:
        expected = fit(store.rewards(JUDGE), scope="task", gate=False)
    assert result.exit_code == 0, result.output
    assert facts(Offsets.load(out)) == facts(expected)


@pytest.mark.parametrize(("sign", "word"), [(1, "later"), (-1, "earlier")])
def test_fit_warns_of_a_judge_of_age(sqlite_url, tmp_path, sign, word):
    """Rewards that follow when documents were first served are told; the store knows it by their numbers."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((24, 8))

    def served(name, rows):
        shown = [
            Candidate(f"d{j:02}", vectors[j], reward=0.5 + sign * (j / 60 - 0.2) + 0.1 * rng.random()) for j in rows
        ]
        return Served(name, rng.standard_normal(8), shown, embedder="model-a", at=1.7e9)

    with open_store(sqlite_url) as store:
        store.observe([served("old", list(range(12)))], judge=JUDGE)
        store.observe([served("new", list(range(23, 11, -1)))], judge=JUDGE)
        store.observe([served(f"q{i}", rng.permutation(24)[:8].tolist()) for i in range(30)], judge=JUDGE)
    result = run("fit", sqlite_url, "--out", tmp_path / "learned.safetensors")

    assert f"warning: rewards follow when documents were first served, {word} is better" in result.output


def test_fit_warns_of_a_judge_that_counts_words(sqlite_url, tmp_path):
    """Rewards that repeat how many words a document shares with its query are told, by the texts in the store."""
    rng = np.random.default_rng(0)
    judged = [
        Candidate(f"d{j}", rng.standard_normal(8), "wash wool by hand in cold water"[: 4 * j + 4], j / 10)
        for j in range(8)
    ]

    with open_store(sqlite_url) as store:
        for number in range(20):
            text = f"wash wool by hand in cold water, please {number}"
            store.observe([Served(f"q{number}", rng.standard_normal(8), judged, text, at=1.7e9)], judge=JUDGE)
    result = run("fit", sqlite_url, "--out", tmp_path / "learned.safetensors")

    assert "warning: rewards repeat how many words documents share with their query" in result.output


@pytest.mark.parametrize(
    ("option", "value"), [("--task", 3), ("--vectors", 3), ("--rewards", 3), ("--scale", "logit"), ("--depth", 3)]
)
def test_fit_refuses_what_says_nothing_of_a_store(url, tmp_path, option, value):
    """The store's address may hold a password: it is not repeated."""
    result = run("fit", url, "--out", tmp_path / "out", option, value)

    assert result.exit_code == 2
    assert result.output.splitlines()[-1] == f"Error: {option}: expected a file or a folder, got a store"


def test_fit_asks_which_judge(url, tmp_path):
    """Where there are several, their rewards are not mixed."""
    with open_store(url) as store:
        store.observe(traffic(1), judge="judge-b")

    result = run("fit", url, "--out", tmp_path / "out")

    assert result.exit_code == 2
    assert "judge-a, judge-b" in result.output


def test_forget_says_what_is_left(url):
    """In words and as JSON; the audit keeps who asked for it."""
    words = run("store forget", "--store", url, "--tenant", "", "--query", "q3", "--by", "privacy office").output
    counted = json.loads(run("store forget", "--store", url, "--tenant", "", "--all", "--by", "me", "--json").output)

    assert words.startswith("forgotten: 1 queries, ")
    assert (counted["forgotten"]["queries"], counted["left"]["queries"]) == (19, 0)
    assert "privacy office" in run("store changes", "--store", url).output


def test_forget_takes_back_what_a_source_said(url):
    """The queries stay; a source without rewards is refused unless that is allowed, a query beside it always."""
    with open_store(url) as store:
        store.observe([replace(traffic(1)[0], source="ann")], judge=JUDGE)
    options = ("--store", url, "--tenant", "", "--by", "me", "--source", "ann")
    asks = ([], [], ["--source", "eve"], ["--source", "eve", "--unseen"], ["--query", "q3"])
    known, again, missed, unseen, both = (run("store forget", *options, *more) for more in asks)

    assert known.output.startswith("forgotten: 0 queries, 0 documents, 0 pairs, 4 rewards, ")
    assert "left of tenant '': 20 queries, 80 rewards" in known.output
    assert (again.exit_code, again.output[:46]) == (0, "forgotten: 0 queries, 0 documents, 0 pairs, 0 ")
    refused = "Error: source: expected one that has rewarded queries of tenant '', got 'eve'; nothing was deleted; "
    assert (missed.exit_code, missed.stderr.count("\n"), missed.stderr[: len(refused)]) == (2, 1, refused)
    assert (unseen.exit_code, unseen.output[:34]) == (0, "forgotten: 0 queries, 0 documents,")
    assert (both.exit_code, "expected one of --query, --source and --all" in both.output) == (2, True)


def test_halt_asks_back_about_a_tenant_nobody_has_heard_of(url):
    """It is halted all the same: a tenant may be served what is shared, and never have sent anything."""
    with open_store(url) as store:
        store.registry.halt(tenant="acme", by="me")
        known, unknown = (
            run("store halt", "--store", url, "--tenant", tenant, "--by", "me") for tenant in ("acme", "acne")
        )

        assert (known.stderr, unknown.stderr) == ("", "tenant 'acne' is new to this store: is that its name?\n")
        assert store.registry.halted(tenant="acne") is not None


@pytest.mark.parametrize("how", [[], ["--json"]])
def test_forget_says_when_it_found_no_query(url, how):
    """On stderr, with exit code 1; a query without an id of its own is found by its text."""
    with open_store(url) as store:
        store.observe([replace(traffic(1)[0], query_id=store.text_id("why?"), query="why?")], judge=JUDGE)

    results = [run("store forget", "--store", url, "--tenant", "", "--query", "why?", *how) for _ in range(2)]

    assert [(result.exit_code, result.stderr) for result in results] == [
        (0, ""),
        (1, "--query: expected the id or text of a query of tenant '', found none\n"),
    ]


@pytest.mark.parametrize(
    ("halted", "live", "arguments", "base"),
    [
        (False, "acme", ["--tenant", "acme", "--all"], True),
        (False, "acme", ["--tenant", "acme", "--query", "q3"], True),
        (False, "acme", ["--tenant", "acme", "--query", "nobody's"], False),  # nothing was removed
        (False, "", ["--tenant", "acme", "--all"], False),  # the shared version goes on being served
        (True, "acme", ["--tenant", "acme", "--all"], False),  # also after the next fit
    ],
)
def test_forget_says_when_base_vectors_are_served(url, halted, live, arguments, base):
    """Where a version went and none is left to be served until the next fit."""
    with open_store(url) as store:
        store.observe(traffic(6, tenant="acme"), judge=JUDGE)
        store.registry.publish(learned(store), by="me", tenant=live)
        if halted:
            store.registry.halt(by="me")

    output = run("store forget", "--store", url, *arguments).output

    assert output.startswith("forgotten: ")
    assert base == ("base vectors are served until the next fit" in output)


def test_the_terminal_obeys_no_id(url, tmp_path):
    """Ids may hold anything: people read question marks."""
    file, escape = tmp_path / "offsets.safetensors", "\x1b]0;mine\x07"
    with open_store(url) as store:
        store.observe([replace(traffic(1)[0], query_id=escape, at=99.0)], judge=JUDGE)
        offsets = fit(store.rewards(JUDGE), scope="query", gate=False)
        offsets.save(file)
        store.registry.publish(offsets, by=escape)

    shown = (["show", file, "--all"], ["show", url, "--all"], ["store changes", "--store", url])
    output = "".join(run(*arguments).output for arguments in shown)

    assert "query:t0/?]0;mine?: ungated" in output
    assert [character for character in output if not character.isprintable() and character != "\n"] == []
    assert f"query:t0/{escape}" in [json.loads(line)["key"] for line in run("show", url, "--json").output.splitlines()]


def test_counts_name_the_judges_of_those_who_are_counted(url):
    """Of all tenants where none is named, each reward once; as many as pairs were judged."""
    with open_store(url) as store:
        store.observe(traffic(5, tenant="acme"), judge=JUDGE)
        store.observe(traffic(5, tenant="other"), judge="judge-b")

    everybody, other = (
        json.loads(run("store counts", "--store", url, "--json", *of).output) for of in ([], ["--tenant", "other"])
    )

    assert (everybody["queries"], everybody["pairs"]) == (30, 120)
    assert (everybody["rewards"], everybody["judges"]) == (120, {JUDGE: 100, "judge-b": 20})
    assert (other["rewards"], other["judges"]) == (20, {"judge-b": 20})


@pytest.fixture
def log(tmp_path):
    """A log of one query."""
    file = tmp_path / "log.jsonl"
    line = {"query_id": "7", "query": "how?", "task": "billing", "candidates": [{"id": "a", "text": "so"}]}
    file.write_text(json.dumps(line) + "\n", encoding="utf-8")
    return file


def test_a_log_is_imported_and_waits(sqlite_url, log):
    """For whichever judge asks."""
    assert run("store import", log, "--store", sqlite_url).output.splitlines() == [
        f"1 queries of {log}",
        (
            "1 of 1 queries and 1 of 1 documents have no vector: nothing is learned from those until --embed SPEC "
            "gives them some"
        ),
    ]
    with open_store(sqlite_url) as store:
        assert [(query.query, query.task) for query in store.judge_queue.waiting(JUDGE)] == [("how?", "billing")]


def test_an_import_asks_whose_queries_it_brings(url, log):
    """Where there are tenants, what belongs to nobody would be the shared tenant's, and reach them all."""
    with open_store(url) as store:
        store.observe(traffic(1, tenant="acme"), judge=JUDGE)
        refused = run("store import", log, "--store", url)
        held = [store.counts(tenant).queries for tenant in ("", "acme")]
        for tenant in ("", "acme"):
            run("store import", log, "--store", url, "--tenant", tenant)

        assert [store.counts(tenant).queries for tenant in ("", "acme")] == [held[0] + 1, held[1] + 1] == [21, 2]
    assert refused.exit_code == 2
    assert "--tenant: expected whose queries these are, as the store has tenants (1)" in refused.stderr


def test_a_store_that_is_made_is_told_of(new_sqlite_url, caplog):
    """Once: who records under a mistyped URL is told that it is not the store that was meant."""
    answers = [run("store create", "--store", new_sqlite_url).stdout for _ in range(2)]

    assert answers == [f"{new_sqlite_url} is ready\n"] * 2
    assert caplog.messages == [f"{new_sqlite_url}: no store was there, made one"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "{url}"],
        ["fit", "{url}", "--out", "{folder}/out"],
        ["audit draw", "{url}", "--out", "{folder}/out"],
        ["report", "--store", "{url}", "--html", "{folder}/out"],
        ["worker", "{url}", "--once"],
        ["serve", "--embed", "python:tttembed_rag.testing:FakeEmbedder", "--store", "{url}"],
    ],
)
def test_no_store_is_made_where_one_is_read(arguments, tmp_path):
    """A mistyped URL is refused in one line by every command that serves, learns or shows."""
    result = run(*(argument.format(url=f"sqlite:///{tmp_path}/typo.db", folder=tmp_path) for argument in arguments))

    assert result.exit_code == 2
    assert "typo.db: expected a store, found no file" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["store versions", "--store", "sqlite:///{folder}/absent.db"], "found no file"),
        (["store versions", "--store", "mysql://user:secret@host/db"], "expected sqlite:///FILE"),
        (["store versions", "--store", "no url: secret"], "expected sqlite:///FILE"),
        (["store versions", "--store", "postgresql+psycopg://user:secret@127.0.0.1:9/db"], "not available"),
        (["store halt", "--store", "sqlite:///{folder}/no/t.db"], "expected a file in an existing folder"),
        *(
            ([f"store {command}", "--store", "{url}", "--tenant", "nobody"], "--tenant: expected a tenant of the store")
            for command in ("counts", "changes", "forget --all")
        ),
        (["store retry", "--store", "{url}", "--judge", "nobody"], "--judge: expected one of the store ("),
        (["store rollback", "--store", "{url}"], "found none; a halt serves base vectors"),
        (["store rollback", "--store", "{url}", "--to", "7"], "got 7"),
        (["store export", "--store", "{url}", "{folder}/out"], "expected a live version"),
        (["store publish", "{folder}/absent", "--store", "{url}"], "expected an offsets file"),
        (["fit", "{url}", "--out", "{folder}/out", "--judge", "nobody"], "nobody"),
        (["fit", "{url}", "--out", "{folder}/out", "--no-gate"], "--scope"),
        (["fit", "{folder}", "--out", "{folder}/out"], "found a folder without corpus.jsonl"),
        (["store forget", "--store", "{url}", "--tenant", ""], "forget: expected one of --query, --source and --all"),
        (
            ["store forget", "--store", "{url}", "--tenant", "acmee", "--all"],
            "expected a tenant of the store, got 'acmee'",
        ),
        (["store export-rewards", "{folder}/out", "--store", "{url}", "--judge", "stranger"], "stranger"),
        (
            ["store export-rewards", "{folder}/out", "--store", "{url}", "--shards", "0"],
            "'--shards': 0 is not in the range",
        ),
        (
            ["store export-rewards", "{folder}/out", "--store", "{url}", "--tenant", "nobody"],
            "export-rewards: expected rewards of tenant 'nobody', found none",
        ),
        (["worker", "{url}", "--judge", "nobody:x"], "nobody"),
        (["worker", "{url}", "--judge", "feedback:x.csv"], "feedback"),
        (["worker", "{url}", "--budget", "pairs=many"], "many"),
        (["worker", "{url}", "--min-new", "0"], "0"),
        (["worker", "{url}", "--every", "0"], "every: expected seconds in (0, 9.2e+09], got 0"),
    ],
)
def test_bad_input_is_one_line(url, tmp_path, arguments, reason):
    """With exit code 2, no trace, and no password; nothing is deleted, and no tenant is made."""
    result = run(*(argument.format(url=url, folder=tmp_path) for argument in arguments))

    with open_store(url) as store:
        assert (store.counts().queries, store.tenants()) == (20, [""])
    assert result.exit_code == 2
    (line,) = [line for line in result.output.splitlines() if line.startswith("Error")]
    assert reason in line
    assert "secret" not in result.output


def test_import_writes_in_parts(url, tmp_path):
    """Others write in between; a second run adds nothing."""
    log = tmp_path / "log.jsonl"
    lines = [
        json.dumps({"query_id": f"i{number}", "query": f"text {number}", "candidates": [{"id": "d", "text": "t"}]})
        for number in range(1201)
    ]
    log.write_text("\n".join(lines), encoding="utf-8")
    twice = [run("store import", log, "--store", url).stdout for _ in range(2)]

    assert twice == [f"1201 queries of {log}\n"] * 2
    with open_store(url) as store:
        assert store.counts().queries == 20 + 1201
