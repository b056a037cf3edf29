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
    """A chat model by OpenAI's protocols, asked singly and by batches: it counts words that query and document share.

    Attributes:
        files: Bytes by id, of those that were not deleted.
        uploads: Numbers of lines of the files of requests, in order.
        batches: Batches by id, oldest first, as they are told.
        paid: Addresses of the requests of batches that were answered, each as often as that came.
        single: Prompts of single requests.
        looks: Looks at a batch until it has ended.
        fate: Called with the requests of a batch that ends; gives its state, lines of results, and lines of errors.
        fault: Called with method and path before each answer, and again behind it with "done"; gives a status, or None.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), BatchHandler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.spec = f"openai:tiny?url={self.url}&key=BATCH_KEY"
        self.lock = threading.RLock()
        self.files, self.batches, self.paid, self.single, self.uploads = {}, {}, [], [], []
        self.names = itertools.count()
        self.looks, self.fault = 2, None
        self.fate = lambda requests: ("completed", list(map(self.result, requests)), [])

    def handle_error(self, *_):
        """A client that was killed is no news."""

    def service(self, *, settling=600.0):
        """What asks it by batches, and never twice."""
        lines = open_batch_service(self.spec).judge
        return OpenAIBatches(lines, lines.single.complete.client.with_options(max_retries=0), settling=settling)

    def reply(self, body):
        """The answer to the body of one request."""
        prompt = body["messages"][0]["content"]
        query, document = re.findall(r"<(?:query|document)-\w+>\n(.*?)\n</", prompt, re.DOTALL)
        message = {"role": "assistant", "content": f"Score: {round(5 * word_overlap(query, document))}"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}}

    def result(self, request):
        """The line of results of one request, which is paid for."""
        self.paid.append(request["custom_id"])
        response = {"status_code": 200, "request_id": "r", "body": self.reply(request["body"])}
        return {"id": "b", "custom_id": request["custom_id"], "response": response, "error": None}

    def keep(self, lines):
        """A file of lines; None for no line."""
        if not lines:
            return None
        with self.lock:
            name = f"file-{next(self.names)}"
            whole = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
            self.files[name] = b"\n".join(whole) + b"\n"
            return name

    def look(self, batch):
        """The batch one look later."""
        with self.lock:
            batch["looks"] += 1
            if batch["status"] in ("validating", "in_progress"):
                batch["status"] = "in_progress"
                if batch["looks"] > self.looks:
                    requests = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
                    batch["status"], results, errors = self.fate(requests)
                    batch |= {"output_file_id": self.keep(results), "error_file_id": self.keep(errors)}
            return batch

    def finish(self):
        """Work through all batches, also those that a worker lost."""
        for batch in list(self.batches.values()) * 9:
            self.look(batch)


class BatchHandler(BaseHTTPRequestHandler):
    """The paths of such a server."""

    def do_GET(self):
        """Without content."""
        self.respond(b"")

    def do_DELETE(self):
        """Without content."""
        self.respond(b"")

    def delete(self, name):
        """Delete a file, if it is there."""
        gone = self.server.files.pop(name, None) is not None
        return json.dumps({"id": name, "object": "file", "deleted": True}).encode() if gone else b""

    def do_POST(self):
        """With content."""
        self.respond(self.rfile.read(int(self.headers["content-length"])))

    def respond(self, content):
        """Answer one request, unless a fault is planned."""
        server, path = self.server, self.path.partition("?")[0].removeprefix("/v1")
        status = server.fault and server.fault(self.command, path)
        if status:
            data = b"{}"
        elif self.command == "DELETE":
            data = self.delete(path.rpartition("/")[2])
        else:
            data = self.answer(path, content)
        if server.fault:
            server.fault("done", path)
        self.send_response(status or (200 if data else 404))
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def answer(self, path, content):
        """What is said; nothing where nothing is."""
        server, name = self.server, path.removesuffix("/content").rpartition("/")[2]
        if path.endswith("/content"):
            return server.files.get(name, b"")
        if path == "/chat/completions":
            server.single.append(content)
            return json.dumps(server.reply(json.loads(content))).encode()
        if path == "/files":
            head = f"content-type: {self.headers['content-type']}\r\n\r\n".encode()
            parts = {
                part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
                for part in BytesParser().parsebytes(head + content).get_payload()
            }
            assert parts["purpose"] == b"batch"
            server.uploads.append(len(parts["file"].splitlines()))
            return json.dumps({"id": server.keep([parts["file"].strip()]), "object": "file"}).encode()
        with server.lock:
            if self.command == "POST":
                batch = {**json.loads(content), "id": f"batch-{len(server.batches)}", "looks": 0}
                server.batches[batch["id"]] = {**batch, "status": "validating", "created_at": 1e10}
                return json.dumps(server.batches[batch["id"]]).encode()
            if path == "/batches":
                newest = list(server.batches)[::-1]
                after = re.search(r"after=([\w-]+)", self.path)
                rest = newest[newest.index(after[1]) + 1 :] if after else newest
                page = [server.batches[name] for name in rest[:2]]  # whatever was asked for
                return json.dumps({"object": "list", "data": page, "has_more": len(rest) > 2}).encode()
            return json.dumps(server.look(server.batches[name])).encode() if name in server.batches else b""

    def log_message(self, *_):
        """Say nothing."""


class GeminiServer(ThreadingHTTPServer):
    """A model by Gemini's protocols: files by resumable upload, batches as operations, single requests.

    Attributes:
        files: Bytes by name.
        jobs: Operations by name, oldest first.
        paid: Keys of the requests of batches that were answered.
        single: Prompts of single requests.
        looks: Looks at a batch until it has ended; None lets it go on until `run`.
        fault: Called with method and path before each answer, and again behind it with "done"; gives a status, or None;
            raises to end the connection.
        state: That a batch ends in.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), GeminiHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.spec = f"gemini:tiny?url={self.url}"
        self.files, self.jobs, self.paid, self.single = {}, {}, [], []
        self.looks, self.looked = None, Counter()
        self.fault, self.state = lambda *_: None, "BATCH_STATE_SUCCEEDED"

    def handle_error(self, *_):
        """A connection that ends is no news."""

    def service(self, *, settling=600.0):
        """What asks it by batches, and never twice."""
        chat = Gemini("tiny", url=self.url, patience=Patience(attempts=1))
        return GeminiBatches(open_batch_service(self.spec).judge, chat, settling=settling)

    @property
    def batches(self):
        """The operations."""
        return self.jobs

    def reply(self, request):
        """The answer to one request."""
        prompt = request["contents"][0]["parts"][0]["text"]
        query, document = re.findall(r"<(?:query|document)-\w+>\n(.*?)\n</", prompt, re.DOTALL)
        parts = [{"text": f"Score: {round(5 * word_overlap(query, document))}"}]
        used = {"promptTokenCount": 100, "candidatesTokenCount": 10}
        candidate = {"content": {"parts": parts, "role": "model"}, "finishReason": "STOP"}
        return {"candidates": [candidate], "usageMetadata": used}

    def look(self, name):
        """Let a batch end that was looked at often enough."""
        self.looked[name] += 1
        if self.looks is not None and self.looked[name] > self.looks:
            self.run(name)

    def finish(self):
        """Work through all batches, also those that a worker lost."""
        for name in self.jobs:
            self.run(name)

    def run(self, name):
        """Let a batch end."""
        job = self.jobs[name]["metadata"]
        if job["state"] not in ("BATCH_STATE_PENDING", "BATCH_STATE_RUNNING"):
            return
        job["state"] = self.state
        if self.state != "BATCH_STATE_SUCCEEDED":
            return
        lines = [json.loads(line) for line in self.files[job["inputConfig"]["fileName"]].splitlines()]
        self.paid += [line["key"] for line in lines]
        results = [json.dumps({"key": line["key"], "response": self.reply(line["request"])}) for line in lines]
        job["output"] = {"responsesFile": f"files/batch-{len(self.files)}"}
        self.files[job["output"]["responsesFile"]] = "\n".join(results).encode()


class GeminiHandler(BatchHandler):
    """The paths of such a server."""

    def respond(self, content):
        """Answer one request."""
        path = self.path.partition("?")[0].replace("/v1beta/", "/v1/")  # by the release of google-genai
        status = self.server.fault(self.command, path)
        headers, body = ({}, {"error": {"code": status, "message": "no"}}) if status else self.answer(path, content)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status or 200)
        for name, value in {**headers, "content-length": str(len(data))}.items():
            self.send_header(name, value)
        self.server.fault("done", path)
        self.end_headers()
        self.wfile.write(data)

    def answer(self, path, content):
        """Headers and body of the answer."""
        server, name = self.server, path.partition("/v1/")[2].removesuffix(":download")
        if path == "/upload/v1/files":
            return {"x-goog-upload-url": f"{server.url}/put"}, {}
        if path == "/put":
            name = f"files/{len(server.files)}"
            server.files[name] = content
            return {"x-goog-upload-status": "final"}, {"file": {"name": name}}
        if path.endswith(":batchGenerateContent"):
            name = f"batches/{len(server.jobs)}"
            job = {**json.loads(content)["batch"], "state": "BATCH_STATE_PENDING", "createTime": "2026-01-01T00:00:00Z"}
            server.jobs[name] = {"name": name, "metadata": job}
            return {}, server.jobs[name]
        if path.endswith(":generateContent"):
            server.single.append(content)
            body = server.reply(json.loads(content))
        elif name == "batches":
            body = {"operations": list(server.jobs.values())[::-1]}
        elif name in server.jobs:
            server.look(name)
            body = server.jobs[name]
        elif self.command == "DELETE":
            body = {"deleted": server.files.pop(name).decode()}
        else:
            body = server.files[name]
        return {}, body


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
    """A running `BatchServer`."""
    monkeypatch.setenv("BATCH_KEY", "secret")
    return running(BatchServer())


@pytest.fixture
def gemini(monkeypatch, running):
    """A running `GeminiServer`."""
    pytest.importorskip("google.genai", reason="google-genai is not installed")
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    return running(GeminiServer())


@pytest.fixture
def service(request):
    """The service that is asked: that of OpenAI, but for tests that name one; a batch ends at its third look."""
    server = request.getfixturevalue("gemini" if getattr(request, "param", "openai") == "gemini" else "batch_server")
    server.looks = 2
    return server


@pytest.fixture
def served():
    """Makes queries of two words; their documents have none, one or both of them."""

    def make(number, *, first=0, depth=3, tenant="", filler="filler"):
        rng = np.random.default_rng(first)
        for q in range(first, first + number):
            words = [f"word{q}", f"word{q}b"]
            texts = [" ".join([*words[:k], f"{filler}{k}"]) for k in range(depth)]
            shown = [Candidate(f"d{q}-{k}", rng.normal(size=4), text) for k, text in enumerate(texts)]
            yield Served(f"q{q}", rng.normal(size=4), shown, " ".join(words), tenant=tenant, at=1e9 + q)

    return make
