"""Closed models on both sides: Gemini embeds, Gemini judges, and query vectors learn from it.

python examples/gemini.py          # offline: a server on this machine that speaks Gemini's protocol
python examples/gemini.py --real   # Gemini itself, with the key in GEMINI_API_KEY; about 250 short requests
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import numpy as np
from handbook import ASKED, PASSAGES, UNSEEN, grade, helps

from tttembed_rag import Known, RewardLog, fit
from tttembed_rag.embedders import GeminiEmbedder
from tttembed_rag.judges import Gemini, RubricJudge
from tttembed_rag.judging import Budget

EMBEDDER, JUDGE = "gemini-embedding-2", "gemini-3.5-flash"
INSTRUCTION = "The passage answers the question for a user of version 2"


class StandIn(BaseHTTPRequestHandler):
    """Embeds a text as the sum of its words' vectors, and grades as a user of version 2 would."""

    def do_POST(self) -> None:
        """Answer as Gemini does."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        reply = embeddings(asked) if self.path.endswith("Contents") else answer(asked)
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def embeddings(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to batchEmbedContents."""
    texts = [request["content"]["parts"][0]["text"] for request in asked["requests"]]
    words = [re.findall(r"\w+", text.partition(": ")[2].lower()) for text in texts]
    return {"embeddings": [{"values": sum(map(drawn, some)).tolist()} for some in words]}


def drawn(word: str) -> np.ndarray:
    """A vector of 256 numbers, the same for the same word."""
    return np.random.default_rng(int.from_bytes(sha256(word.encode()).digest()[:8])).normal(size=256)


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to generateContent."""
    parts = [{"text": grade(asked["contents"][0]["parts"][0]["text"])}]
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}


@contextmanager
def service(*, real: bool) -> Iterator[str | None]:
    """The address of the stand-in; None for Gemini's own."""
    if real:
        yield None
        return
    os.environ["GEMINI_API_KEY"] = "none is needed on loopback"
    with ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def learn(url: str | None) -> None:
    """Search, judge, learn, search again."""
    embedder = GeminiEmbedder(EMBEDDER, dimensions=256, url=url)
    gemini = Gemini(JUDGE, url=url)
    judge = RubricJudge(gemini, model=gemini.name, settings=gemini.settings, instruction=INSTRUCTION)
    documents, asked, unseen = (embedder.embed_documents(PASSAGES), *map(embedder.embed_queries, (ASKED, UNSEEN)))

    def report(when: str, queries: np.ndarray) -> None:
        first = (queries @ documents.T).argmax(axis=1)
        right = sum(helps(question, PASSAGES[row]) for question, row in zip(UNSEEN, first, strict=True))
        print(f"{when}: the first passage helps for {right} of {len(UNSEEN)} questions nobody judged")

    report("before", unseen)
    log = RewardLog.of(judge)
    for question, vector in zip(ASKED, asked, strict=True):
        found = np.argsort(-(documents @ vector))[:5]
        log.observe(question, [PASSAGES[row] for row in found], known=Known(vector))
    verdicts = log.score_waiting(judge, budget=Budget(pairs=240))
    known = dict(zip(PASSAGES, documents, strict=True))
    offsets = fit(
        log.rewards(lambda text: embedder.embed_queries([text])[0], lambda texts: [known[text] for text in texts])
    )
    print(f"{verdicts.progress.usage.requests} requests to the judge; {offsets['local:default'].evidence}")
    report("after", offsets.apply(unseen))


def main() -> None:
    """Run it against the stand-in or the service."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="ask Gemini; needs its key")
    with service(real=parser.parse_args().real) as url:
        learn(url)


if __name__ == "__main__":
    main()
