"""The page of a report in a real browser, Chromium; skipped where it is not installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape

import pytest
from tttembed_store.report import page_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt install chromium)"),
    pytest.mark.slow,
]
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
    const c = parsed(view.getComputedStyle(node).backgroundColor); if (c.length < 4 || c[3] > 0) return c.slice(0, 3); }
    return [255, 255, 255]; };
  page.querySelectorAll('details').forEach(details => details.open = true);
  const ratios = [];
  for (const node of page.querySelectorAll("main *")) {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.getClientRects().length || node.closest("title")) continue;
    const style = view.getComputedStyle(node), drawn = node.namespaceURI.endsWith("svg");
    const a = light(parsed(drawn ? style.fill : style.color).slice(0, 3));
    const patterned = node.closest(".unjudged");
    const soft = parsed(view.getComputedStyle(page.querySelector(".verdict")).backgroundColor);
    for (const back of patterned ? [behind(node), soft] : [behind(node)]) {
      const b = light(back);
      ratios.push([(Math.max(a, b) + .05) / (Math.min(a, b) + .05), node.textContent.trim().slice(0, 40)]);
    }
  }
  return ratios;
})()
"""
# What reaches beyond the window and cannot be scrolled within its own frame.
OVERFLOWS = """
[page.documentElement.scrollWidth > view.innerWidth ? "the page" : "",
 ...[...page.querySelectorAll("main *")].filter(node => !node.closest(".scroll") &&
   node.getBoundingClientRect().right > view.innerWidth + 1).map(node => node.outerHTML.slice(0, 80))].filter(Boolean)
"""
IS_DARK = "view.matchMedia('(prefers-color-scheme: dark)').matches"
# A window with the page in it, whose title is what a script says of the page.
WINDOW = """<iframe src="{page}" width="{width}" height="{height}" style="border: 0"></iframe><script>onload = () => {{
  const {{ contentDocument: page, contentWindow: view }} = document.querySelector("iframe");
  document.title = JSON.stringify({script});
}}</script>"""


def seen(path, script, *, size=DESKTOP, dark=False):
    """What *script* says of the page at *path* in a window of a *size*."""
    window = path.with_name("window.html")
    width, height = size
    window.write_text(WINDOW.format(page=path.name, width=width, height=height, script=script), encoding="utf-8")
    profile, scheme = path.with_name("profile"), int(not dark)
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", f"--blink-settings=preferredColorScheme={scheme}"]
    done = subprocess.run([*command, window.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(unescape(re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)[1]))


@pytest.fixture(scope="module")
def path(report, tmp_path_factory):
    """Where the page of a store with hostile texts lies."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_of(report), encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_can_be_read(path, size, dark):
    """All texts have contrast, and nothing reaches beyond the window."""
    contrasts, overflows, is_dark = seen(path, f"[{CONTRASTS}, {OVERFLOWS}, {IS_DARK}]", size=size, dark=dark)

    assert is_dark == dark
    assert len(contrasts) > 100
    assert [text for ratio, text in contrasts if ratio < LEAST_CONTRAST] == []
    assert overflows == []


def test_hostile_texts_do_nothing(path):
    """They are shown; no script runs, and nothing is asked for."""
    scripts = ("page.title", "page.scripts.length", "view.performance.getEntriesByType('resource').length")
    query = "page.querySelector('details.query summary').textContent"

    title, count, requests, summary = seen(path, f"[{', '.join(scripts)}, {query}]")

    assert (title, count, requests) == ("Offsets of ttt", 0, 0)
    assert "onerror" in summary


@pytest.mark.parametrize(("policy", "title"), [(True, "Offsets of ttt"), (False, "run")])
def test_the_policy_admits_no_script(path, policy, title):
    """One that got into the page nevertheless runs only where the policy is taken out too."""
    text = path.read_text(encoding="utf-8").replace("</main>", "<script>document.title = 'run'</script></main>")
    broken = path.with_name("broken.html")
    broken.write_text(text if policy else text.replace("Content-Security-Policy", ""), encoding="utf-8")

    assert seen(broken, "page.title") == title
