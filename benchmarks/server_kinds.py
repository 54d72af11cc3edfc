"""A Flask application that echoes, on one of the HTTP servers that `servers.py` compares.

    python benchmarks/server_kinds.py KIND PORT THREADS

It serves on 127.0.0.1:PORT until SIGTERM. Packages that threadcast does not need are found in build/servers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flask import Flask, request

PACKAGES = Path(__file__).parents[1] / "build" / "servers"
NEEDED = ("waitress", "granian", "uvicorn", "a2wsgi", "uvloop", "httptools")
LONG_BYTES = 8 << 20

app = Flask("echo")


@app.post("/echo")
def echo() -> bytes:
    """What was sent."""
    return request.get_data()


@app.get("/long")
def long() -> bytes:
    """More than sockets buffer."""
    return b"x" * LONG_BYTES


@app.get("/")
def root() -> str:
    """A few bytes."""
    return "root"


@app.get("/hidden")
def hidden() -> str:
    """What a smuggled request would get."""
    return "hidden"


def install() -> None:
    """Put the other servers into build/servers."""
    if not (PACKAGES / ".ready").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(PACKAGES), *NEEDED]
        subprocess.run(command, check=True)
        (PACKAGES / ".ready").touch()


def gunicorn(port: int, threads: int, **options: Any) -> None:
    """The application under gunicorn."""
    from gunicorn.app.base import BaseApplication

    common = {"bind": f"127.0.0.1:{port}", "workers": 1, "threads": threads, "keepalive": 5, "loglevel": "critical"}

    class Echo(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            for name, value in {**common, "control_socket_disable": True, **options}.items():
                self.cfg.set(name, value)

        def load(self) -> Flask:
            return app

    Echo().run()


def ours(port: int, threads: int) -> None:
    """As `threadcast serve`."""
    from threadcast.service.worker import Worker

    app.extensions["threadcast"] = SimpleNamespace(metrics=SimpleNamespace(count_unmatched=lambda *_: None))
    gunicorn(port, threads, worker_class=Worker)


NGINX = """{user}
daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/log crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000;
  client_header_timeout 10; client_body_timeout 10; client_max_body_size 32m;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy; fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
  upstream behind {{ server 127.0.0.1:{behind}; keepalive 16; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


def behind_nginx(port: int, threads: int) -> None:
    """gunicorn's threaded worker behind nginx, which collects requests and answers."""
    behind = port + 1000
    user = "" if os.getuid() else "user root;"  # else its files in the directory would be another user's
    with tempfile.TemporaryDirectory(prefix="threadcast-nginx-") as directory:
        configuration = Path(directory) / "nginx.conf"
        configuration.write_text(NGINX.format(user=user, directory=directory, port=port, behind=behind))
        proxy = subprocess.Popen([str(shutil.which("nginx")), "-c", str(configuration)], stderr=subprocess.DEVNULL)
        try:
            gunicorn(behind, threads, worker_class="gthread")
        finally:
            proxy.terminate()
            proxy.wait(10)


def waitress(port: int, threads: int) -> None:
    """Waitress."""
    from waitress import serve

    serve(app, host="127.0.0.1", port=port, threads=threads, _quiet=True)


def granian(port: int, threads: int) -> None:
    """Granian, which imports this file again in its own process."""
    from granian import Granian
    from granian.constants import Interfaces

    Granian(
        "server_kinds:app", address="127.0.0.1", port=port, interface=Interfaces.WSGI, blocking_threads=threads,
        log_enabled=False, working_dir=Path(__file__).parent,
    ).serve()  # fmt: skip


def uvicorn(port: int, threads: int) -> None:
    """uvicorn with a2wsgi."""
    from a2wsgi import WSGIMiddleware
    from uvicorn import run

    run(WSGIMiddleware(app, workers=threads), host="127.0.0.1", port=port, log_level="critical", access_log=False)


KINDS: dict[str, Callable[[int, int], None]] = {
    "threadcast's (Tornado)": ours,
    "gunicorn, gthread": lambda port, threads: gunicorn(port, threads, worker_class="gthread"),
    "the same behind nginx": behind_nginx,
    "Waitress": waitress,
    "Granian (WSGI)": granian,
    "uvicorn, a2wsgi": uvicorn,
}

if __name__ == "__main__":
    sys.path.append(str(PACKAGES))
    KINDS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
