"""Batch services on loopback, as OpenAI and Gemini have them: files, batches, and single requests."""

import itertools
import json
import re
import threading
from collections import Counter
from contextlib import ExitStack
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from tttembed_store import Candidate, Served
from tttembed_store.batches import open_batch_service
from tttembed_store.batches.service import GeminiBatches, OpenAIBatches

from tttembed_rag.judges import Patience
from tttembed_rag.judges.chats import Gemini
from tttembed_rag.testing import word_overlap


class BatchServer(ThreadingHTTPServer):
    """A chat model that is asked singly and by batches: it counts words that query and document share.

    Attributes:
        files: Bytes by id, of those that were not deleted.
        batches: Batches by id, oldest first, as they are told.
        paid: Addresses of the requests of batches that were answered, each as often as that came.
        single: Prompts of single requests.
        looks: Looks at a batch until it has ended.
        fault: Called with method and path before each answer, and again behind it with "done"; gives a status, or None;
            raises to end the connection.
    """

    daemon_threads = True

    def __init__(self, handler, prefix):
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.prefix, self.lock, self.names = prefix, threading.RLock(), itertools.count()
        self.files, self.batches, self.paid, self.single = {}, {}, [], []
        self.looked, self.looks = Counter(), 2
        self.fault = lambda *_: None

    def handle_error(self, *_):
        """A client that was killed, or a connection that ends, is no news."""

    def keep(self, content):
        """Keep a file; gives its name."""
        with self.lock:
            name = f"{self.prefix}{next(self.names)}"
            self.files[name] = content
            return name

    def look(self, name):
        """The batch one look later; it ends where it was looked at often enough."""
        with self.lock:
            self.looked[name] += 1
            if self.looked[name] > self.looks:
                self.end(self.batches[name])
            return self.batches[name]

    def finish(self):
        """Work through all batches, also those that a worker lost."""
        for batch in self.batches.values():
            self.end(batch)


def verdict(prompt):
    """What the model says of a prompt."""
    query, document = re.findall(r"<(?:query|document)-\w+>\n(.*?)\n</", prompt, re.DOTALL)
    return f"Score: {round(5 * word_overlap(query, document))}"


class BatchHandler(BaseHTTPRequestHandler):
    """The paths of such a server: `answer(path, content)` gives a body, None where there is nothing."""

    def do_GET(self):
        """Without content."""
        self.respond(b"")

    def do_DELETE(self):
        """Without content."""
        self.respond(b"")

    def do_POST(self):
        """With content."""
        self.respond(self.rfile.read(int(self.headers["content-length"])))

    def respond(self, content):
        """Answer one request, unless a fault is planned."""
        path = self.path.partition("?")[0].replace("/v1beta/", "/v1/")  # by the release of google-genai
        status = self.server.fault(self.command, path.removeprefix("/v1"))
        body = {"error": {"code": status, "message": "no"}} if status else self.answer(path, content)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.server.fault("done", path.removeprefix("/v1"))
        self.send_response(status or (404 if body is None else 200))
        for name, value in {"content-type": "application/json", **self.server.headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Say nothing."""


class OpenAIServer(BatchServer):
    """One by OpenAI's protocols.

    Attributes:
        uploads: Numbers of lines of the files of requests, in order.
        fate: Called with the requests of a batch that ends; gives its state, lines of results, and lines of errors.
    """

    def __init__(self):
        super().__init__(OpenAIHandler, "file-")
        self.spec = f"openai:tiny?url={self.url}/v1&key=BATCH_KEY"
        self.headers, self.uploads = {}, []
        self.fate = lambda requests: ("completed", list(map(self.result, requests)), [])

    def service(self, *, settling=600.0):
        """What asks it by batches, and never twice."""
        lines = open_batch_service(self.spec).judge
        return OpenAIBatches(lines, lines.single.complete.client.with_options(max_retries=0), settling=settling)

    def reply(self, body):
        """The answer to the body of one request."""
        message = {"role": "assistant", "content": verdict(body["messages"][0]["content"])}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}}

    def result(self, request):
        """The line of results of one request, which is paid for."""
        self.paid.append(request["custom_id"])
        response = {"status_code": 200, "request_id": "r", "body": self.reply(request["body"])}
        return {"id": "b", "custom_id": request["custom_id"], "response": response, "error": None}

    def end(self, batch):
        """Let a batch end."""
        if batch["status"] == "in_progress":
            requests = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
            batch["status"], *parts = self.fate(requests)
            for name, lines in zip(("output_file_id", "error_file_id"), parts, strict=True):
                batch[name] = self.keep("\n".join(map(json.dumps, lines)).encode()) if lines else None


class OpenAIHandler(BatchHandler):
    """The paths of OpenAI."""

    def answer(self, path, content):
        """The body of an answer."""
        path = path.removeprefix("/v1")
        if path == "/chat/completions":
            self.server.single.append(content)
            return self.server.reply(json.loads(content))
        with self.server.lock:
            return (self.of_files if path.startswith("/files") else self.of_batches)(path, content)

    def of_files(self, path, content):
        """Keep, give or delete a file."""
        server, name = self.server, path.removesuffix("/content").rpartition("/")[2]
        if self.command == "POST":
            head = f"content-type: {self.headers['content-type']}\r\n\r\n".encode()
            parts = {
                part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
                for part in BytesParser().parsebytes(head + content).get_payload()
            }
            assert parts["purpose"] == b"batch"
            server.uploads.append(len(parts["file"].splitlines()))
            return {"id": server.keep(parts["file"].strip()), "object": "file"}
        if self.command == "GET":
            return server.files.get(name)
        gone = server.files.pop(name, None)
        return None if gone is None else {"id": name, "object": "file", "deleted": True}

    def of_batches(self, path, content):
        """Make a batch, list them, two at a time, or look at one."""
        server, name = self.server, path.rpartition("/")[2]
        if self.command == "POST":
            batch = {**json.loads(content), "id": f"batch-{len(server.batches)}"}
            server.batches[batch["id"]] = {**batch, "status": "in_progress", "created_at": 1e10}
            return server.batches[batch["id"]]
        if path == "/batches":
            newest = list(server.batches)[::-1]
            after = re.search(r"after=([\w-]+)", self.path)
            rest = newest[newest.index(after[1]) + 1 :] if after else newest
            return {"object": "list", "data": [server.batches[name] for name in rest[:2]], "has_more": len(rest) > 2}
        return server.look(name) if name in server.batches else None


class GeminiServer(BatchServer):
    """One by Gemini's protocols: files by resumable upload, batches as operations.

    Attributes:
        state: That a batch ends in.
    """

    def __init__(self):
        super().__init__(GeminiHandler, "files/")
        self.spec = f"gemini:tiny?url={self.url}"
        self.headers = {"x-goog-upload-url": f"{self.url}/put", "x-goog-upload-status": "final"}
        self.state = "BATCH_STATE_SUCCEEDED"

    def service(self, *, settling=600.0):
        """What asks it by batches, and never twice."""
        chat = Gemini("tiny", url=self.url, patience=Patience(attempts=1))
        return GeminiBatches(open_batch_service(self.spec).judge, chat, settling=settling)

    def reply(self, request):
        """The answer to one request."""
        parts = [{"text": verdict(request["contents"][0]["parts"][0]["text"])}]
        used = {"promptTokenCount": 100, "candidatesTokenCount": 10}
        candidate = {"content": {"parts": parts, "role": "model"}, "finishReason": "STOP"}
        return {"candidates": [candidate], "usageMetadata": used}

    def end(self, batch):
        """Let a batch end."""
        job = batch["metadata"]
        if job["state"] != "BATCH_STATE_RUNNING":
            return
        job["state"] = self.state
        if self.state == "BATCH_STATE_SUCCEEDED":
            lines = [json.loads(line) for line in self.files[job["inputConfig"]["fileName"]].splitlines()]
            self.paid += [line["key"] for line in lines]
            results = [json.dumps({"key": line["key"], "response": self.reply(line["request"])}) for line in lines]
            job["output"] = {"responsesFile": self.keep("\n".join(results).encode())}


class GeminiHandler(BatchHandler):
    """The paths of Gemini."""

    def answer(self, path, content):
        """The body of an answer."""
        server, name = self.server, path.partition("/v1/")[2].removesuffix(":download")
        if path == "/put":
            body = {"file": {"name": server.keep(content)}}
        elif path.endswith(":batchGenerateContent"):
            name = f"batches/{len(server.batches)}"
            job = {**json.loads(content)["batch"], "state": "BATCH_STATE_RUNNING", "createTime": "2026-01-01T00:00:00Z"}
            body = server.batches[name] = {"name": name, "metadata": job}
        elif path.endswith(":generateContent"):
            server.single.append(content)
            body = server.reply(json.loads(content))
        elif name == "batches":
            body = {"operations": list(server.batches.values())[::-1]}
        elif name in server.batches:
            body = server.look(name)
        elif self.command == "DELETE":
            body = {"deleted": server.files.pop(name).decode()}
        else:
            body = server.files.get(name, {})  # none where an upload begins
        return body


@pytest.fixture
def running():
    """Runs a server until the test has ended: `running(server)` gives it back."""
    with ExitStack() as ends:

        def start(server):
            ends.enter_context(server)
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
            thread.start()
            ends.callback(thread.join)
            ends.callback(server.shutdown)
            return server

        yield start


@pytest.fixture
def batch_server(monkeypatch, running):
    """A running `OpenAIServer`."""
    monkeypatch.setenv("BATCH_KEY", "secret")
    return running(OpenAIServer())


@pytest.fixture
def gemini(monkeypatch, running):
    """A running `GeminiServer`."""
    pytest.importorskip("google.genai", reason="google-genai is not installed")
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    return running(GeminiServer())


@pytest.fixture
def service(request):
    """The service that is asked: that of OpenAI, but for tests that name one; a batch ends at its third look."""
    return request.getfixturevalue("gemini" if getattr(request, "param", "openai") == "gemini" else "batch_server")


def queries(number, *, first=0, depth=3, tenant="", filler="filler"):
    """Queries of two words; their documents have none, one or both of them."""
    rng = np.random.default_rng(first)
    for q in range(first, first + number):
        words = [f"word{q}", f"word{q}b"]
        texts = [" ".join([*words[:k], f"{filler}{k}"]) for k in range(depth)]
        shown = [Candidate(f"d{q}-{k}", rng.normal(size=4), text) for k, text in enumerate(texts)]
        yield Served(f"q{q}", rng.normal(size=4), shown, " ".join(words), tenant=tenant, at=1e9 + q)


@pytest.fixture
def served():
    """`queries(number)`."""
    return queries
