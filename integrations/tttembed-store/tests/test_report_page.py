"""The page of a report in a real browser: Chromium, driven over a pipe; skipped where it is not installed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from tttembed_store import Candidate, Served, Worker, open_store
from tttembed_store.report import gather, page_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt install chromium)"),
    pytest.mark.slow,
]
EVIL = "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
DESKTOP, PHONE = (1200, 900), (375, 812)
# Contrast of text that the accessibility guidelines ask for (WCAG 2.2, 1.4.3).
LEAST_CONTRAST = 4.5

# Each text of the page with the ratio of its colour to what lies behind it; what is not shown is left out.
CONTRASTS = """
(() => {
  const light = (c) => { c = c.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * c[0] + .7152 * c[1] + .0722 * c[2]; };
  const parsed = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const behind = (node) => { for (; node; node = node.parentElement) {
    const c = parsed(getComputedStyle(node).backgroundColor); if (c.length < 4 || c[3] > 0) return c.slice(0, 3); }
    return [255, 255, 255]; };
  const found = [];
  for (const node of document.querySelectorAll("main *")) {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.getClientRects().length || node.closest("title")) continue;
    const style = getComputedStyle(node), drawn = node.namespaceURI.endsWith("svg");
    const a = light(parsed(drawn ? style.fill : style.color).slice(0, 3));
    const patterned = node.closest(".unjudged");
    const soft = parsed(getComputedStyle(document.querySelector(".verdict")).backgroundColor);
    for (const back of patterned ? [behind(node), soft] : [behind(node)]) {
      const b = light(back);
      found.push([(Math.max(a, b) + .05) / (Math.min(a, b) + .05), node.textContent.trim().slice(0, 40)]);
    }
  }
  return found;
})()
"""
# What reaches beyond a window of WIDTH and cannot be scrolled within its own frame.
OVERFLOWS = """
[document.documentElement.scrollWidth > WIDTH ? "the page" : "",
 ...[...document.querySelectorAll("main *")].filter(node => !node.closest(".scroll") &&
   node.getBoundingClientRect().right > WIDTH + 1).map(node => node.outerHTML.slice(0, 80))].filter(Boolean)
"""
# Runs a command that reads from the first of two descriptors as 3, and writes to the second as 4.
AS_3_AND_4 = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for number, end in enumerate(ends, 3):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A page in a headless Chromium, asked in the DevTools protocol over a pipe."""

    def __init__(self, folder):
        ours, theirs = os.pipe(), os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        command = [str(CHROMIUM), *options, f"--user-data-dir={folder}", "about:blank"]
        ends = (ours[0], theirs[1])
        self._process = subprocess.Popen(
            [sys.executable, "-c", AS_3_AND_4, *map(str, ends), *command],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self._asked, self._answers = os.fdopen(ours[1], "wb", buffering=0), os.fdopen(theirs[0], "rb")
        self._number, self._rest, self._session = itertools.count(1), b"", ""
        (page, *_) = [target for target in self.ask("Target.getTargets")["targetInfos"] if target["type"] == "page"]
        self._session = self.ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        self.console: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self):
        self._asked.close()
        self._answers.close()
        self._process.terminate()
        self._process.wait(60)

    def ask(self, method, **parameters):
        """The answer to one request; what the browser reports meanwhile is noted."""
        number = next(self._number)
        request: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        self._asked.write(json.dumps(request).encode() + b"\0")
        while (message := self._next()).get("id") != number:
            pass
        assert "error" not in message, message
        answer: dict[str, Any] = message["result"]
        return answer

    def _next(self):
        while b"\0" not in self._rest:
            more = os.read(self._answers.fileno(), 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        event, facts = message.get("method", ""), message.get("params", {})
        if event == "Log.entryAdded":
            self.console.append(facts["entry"]["text"])
        elif event == "Runtime.exceptionThrown":
            self.console.append(facts["exceptionDetails"]["text"])
        elif event == "Network.requestWillBeSent" and not facts["request"]["url"].startswith(("file:", "about:")):
            self.console.append(f"asked for {facts['request']['url']}")
        elif event == "Page.loadEventFired":
            self.loaded = True
        return message

    def look(self, path, *, size=DESKTOP, dark=False):
        """Open the page at *path* in a window of a *size*."""
        width, height = size
        self.console, self.loaded = [], False
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=size == PHONE,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=path.as_uri())
        while not self.loaded:
            self._next()

    def run(self, script):
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with closing(Browser(tmp_path_factory.mktemp("profile"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(planted, tmp_path_factory):
    """The page of a store that a worker has filled, with hostile texts, and documents not judged."""
    folder = tmp_path_factory.mktemp("page")
    rewards = planted(60, strength=0.9, dtype=np.float32)
    url = f"sqlite:///{folder / 'ttt.db'}"

    def query(i):
        pairs = list(range(rewards.starts[i], rewards.starts[i + 1]))
        values = [*rewards.values[pairs[:-2]].tolist(), None, None]
        candidates = [
            Candidate(f"{EVIL}{j}", rewards.doc_vectors[j], f"{EVIL} title {j}", value)
            for j, value in zip(pairs, values, strict=True)
        ]
        text = f"{EVIL} query {i} " + "long" * 60
        return Served(f"q{i}", rewards.query_vectors[i], candidates, text, "task", at=1000.0 + i, embedder="e")

    with open_store(url) as store:
        store.observe(map(query, range(60)), judge="judge" + EVIL)
        Worker(store).round()
    path = folder / "report.html"
    path.write_text(page_of(gather(url, at=5000.0)), encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_can_be_read(browser, page, size, dark):
    """All texts have contrast, and nothing reaches beyond the window."""
    browser.look(page, size=size, dark=dark)
    browser.run("document.querySelectorAll('details').forEach(details => details.open = true)")

    contrasts = browser.run(CONTRASTS)

    assert len(contrasts) > 100
    assert [text for ratio, text in contrasts if ratio < LEAST_CONTRAST] == []
    assert browser.run(OVERFLOWS.replace("WIDTH", str(size[0]))) == []


def test_hostile_texts_do_nothing(browser, page):
    """They are shown; no script runs, and nothing is asked for."""
    browser.look(page)

    assert browser.run("document.title") == "Offsets of ttt"
    assert browser.run("document.scripts.length") == 0
    assert "onerror" in browser.run("document.querySelector('details.query summary').textContent")
    assert browser.console == []


def test_the_policy_admits_no_script(browser, page, tmp_path):
    """One that got into the page nevertheless would not run."""
    broken = tmp_path / "broken.html"
    text = page.read_text(encoding="utf-8").replace("</main>", "<script>document.title = 'run'</script></main>")
    broken.write_text(text, encoding="utf-8")

    browser.look(broken)

    assert browser.run("document.title") == "Offsets of ttt"
    assert "Content Security Policy" in browser.console[0]
