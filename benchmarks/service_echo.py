"""What the service is held against: a bare Flask echo, on a free port, whose URL it prints.

python benchmarks/service_echo.py THREADS BYTES [gthread]
"""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace


def serve_echo(threads: int, answer_bytes: int, *, standard: bool) -> None:
    """A Flask application that reads what it was sent and answers `answer_bytes` bytes.

    On the service's own worker; `standard`: on gunicorn's own threaded worker.
    """
    from flask import Flask, request
    from gunicorn.app.base import BaseApplication

    from threadcast.service.worker import Worker

    app, content = Flask("echo"), b"x" * answer_bytes
    app.extensions["threadcast"] = SimpleNamespace(metrics=SimpleNamespace(count_unmatched=lambda *_: None))

    @app.post("/echo")
    def echo() -> bytes:
        request.get_data()
        return content

    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    options = {
        "bind": f"fd://{listener.detach()}", "workers": 1, "threads": threads,
        "worker_class": "gthread" if standard else Worker, "keepalive": 5, "loglevel": "error",
        "control_socket_disable": True,
    }  # fmt: skip

    class Echo(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            for name, value in options.items():
                self.cfg.set(name, value)

        def load(self) -> Flask:
            return app

    Echo().run()


if __name__ == "__main__":
    serve_echo(int(sys.argv[1]), int(sys.argv[2]), standard="gthread" in sys.argv[3:])
