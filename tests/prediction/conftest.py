"""A prediction service on loopback."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.clock import Clock
from tests.prediction.predicting import Service, answer_of


class Handler(BaseHTTPRequestHandler):
    """Answers as `running` says."""

    running: Service

    def do_POST(self) -> None:
        running = self.running
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        running.questions.append(question)
        running.headers.append(dict(self.headers))
        running.before()
        status = running.failures.pop(0) if running.failures else running.status
        content = running.answer(json.dumps(answer_of(running.predictor, question)).encode())
        headers = {"Content-Type": "application/json"}
        self.send_response(status)
        running.statuses.append(status)
        for name, value in ({**headers, "Content-Length": str(len(content))} | running.answer_headers).items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client hangs up on what is too long
            self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def served(kind: type[ThreadingHTTPServer], scheme: str) -> Iterator[Service]:
    """A service behind a server of this kind, on a thread that has ended afterwards."""

    class OfThisTest(Handler):
        pass

    with kind(("127.0.0.1", 0), OfThisTest) as server:
        OfThisTest.running = Service(f"{scheme}://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield OfThisTest.running
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    with served(ThreadingHTTPServer, "http") as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()
