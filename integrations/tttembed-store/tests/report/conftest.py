"""A store that a worker has filled with hostile texts, what is reported of it, and the parts of its page."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser

import numpy as np
import pytest
from tttembed_store import Worker, open_store
from tttembed_store.report import gather, page_of

from tests.traffic import rewarded

NOON = datetime(2026, 3, 20, 12, tzinfo=UTC).timestamp()
DAY = 86_400.0
JUDGE = "judge<script>alert('judge')</script>"
EVIL = "<script>document.title=\"{}\"</script><img src=x onerror='alert(1)'>&amp;"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """What a page says, section by section, and which elements it is made of."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.html = html
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {"": ""}
        self.unclosed: list[str] = []
        self._heading: str | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        """Note the element and where it lies."""
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.unclosed.append(tag)
        if tag == "h2":
            self._heading = ""

    def handle_startendtag(self, tag, attrs):
        """Note an element of a drawing."""
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        """Check that it closes what was opened last."""
        assert self.unclosed.pop() == tag
        if tag == "h2" and self._heading is not None:
            self.sections[self._heading] = ""
            self._heading = None

    def handle_data(self, data):
        """Keep what is said, but not the style."""
        if self._heading is not None:
            self._heading += data
        elif "style" not in self.unclosed:
            name = list(self.sections)[-1]
            self.sections[name] = " ".join(f"{self.sections[name]} {data}".split())

    def all(self, tag):
        """The attributes of every element of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="session")
def url(planted, tmp_path_factory):
    """A store in which a worker has published twice; every text is hostile, and two documents of each list unjudged."""
    rewards = planted(80, strength=0.9, dtype=np.float32)
    url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'ttt.db'}"
    with open_store(url) as store:
        worker = Worker(store)
        hostile = {"texts": EVIL.format, "unjudged": 2}
        store.observe(rewarded(rewards, range(40), at=NOON - 9 * DAY, **hostile), judge=JUDGE)
        worker.round()
        store.observe(rewarded(rewards, range(40, 80), at=NOON - DAY, **hostile), judge=JUDGE)
        worker.round()
        store.changes.note(EVIL.format("by"), EVIL.format("action"), EVIL.format("detail"))
    return url


@pytest.fixture(scope="session")
def report(url):
    """What is told of it."""
    return gather(url, at=NOON)


@pytest.fixture(scope="session")
def held(report):
    """What offsets of the rewards in the store do to queries held out."""
    assert report.held_out is not None
    return report.held_out


@pytest.fixture(scope="session")
def page(report):
    return Page(page_of(report))


@pytest.fixture(scope="session")
def parsed():
    """Gives the parts of a page: `parsed(html)`."""
    return Page


@pytest.fixture(scope="session")
def evil():
    """Makes a text hostile, as those of the store are."""
    return EVIL.format
