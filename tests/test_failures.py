"""FailureLog: one line a minute for a failure of every request."""

import logging

from tttembed_rag.adapting import FailureLog
from tttembed_rag.testing import FakeClock
from tttembed_rag.vectors.functions import vectors_from


def fail(failures, *arguments):
    try:
        raise TimeoutError("the judge is away\nand more lines")
    except TimeoutError:
        failures.exception("%r: not judged", *arguments)


def test_the_first_failure_is_one_line(caplog):
    """It says what failed and the first line of why, without a traceback."""
    fail(FailureLog(logging.getLogger("it")), "q")

    [record] = caplog.records
    assert record.getMessage() == "'q': not judged: TimeoutError: the judge is away"
    assert (record.levelno, record.exc_info) == (logging.ERROR, None)


def test_words_of_a_model_are_not_logged(caplog):
    """They may repeat a text: an error has its kind and its place, one of ours what it says without them."""

    def embed(text):
        raise ValueError(text)

    for error in (lambda: embed("a question"), lambda: vectors_from("embed", embed, "a question")):
        try:
            error()
        except Exception:  # noqa: BLE001 - both kinds
            FailureLog(logging.getLogger("it")).exception("not embedded")

    assert "a question" not in caplog.text
    assert caplog.text.count(f"ValueError ({__file__}:") == 2


def test_later_ones_are_counted(caplog):
    """Within a minute nothing more is said; then one line says how many there were."""
    clock = FakeClock()
    failures = FailureLog(logging.getLogger("it"), clock=clock)
    for _ in range(5):
        fail(failures, "q")
    clock.sleep(61)
    fail(failures, "r")

    assert len(caplog.messages) == 2
    assert caplog.messages[1].endswith("(4 more like it in the last 61 s)")


def test_every_traceback_is_there_for_whoever_looks(caplog):
    caplog.set_level(logging.DEBUG)
    failures = FailureLog(logging.getLogger("it"))
    for _ in range(3):
        fail(failures, "q")

    assert [record.exc_info is not None for record in caplog.records if record.levelno == logging.DEBUG] == [True] * 3
