"""Runs the application under gunicorn: worker processes with threads.

Each worker creates the application after the fork, since OpenMP pools and database connections do not survive one.
"""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import logging
import math
import os
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer
from gunicorn.glogging import Logger

from threadcast.core.errors import ConfigError, InvalidInput, ServiceError, ThreadcastError
from threadcast.service import logs, planners, request_marks
from threadcast.service.http_server import Bounds
from threadcast.service.settings import ServiceSettings
from threadcast.service.worker import Worker

if TYPE_CHECKING:
    from threadcast.service.context import Context

_log = logging.getLogger(__name__)

MULTIPROCESS_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the directory where prometheus_client collects the metrics of several processes."""

ANSWER_S = 1.0
"""Seconds beyond the deadline after which a request is answered by the server itself, whatever its thread does."""

STALL_S = 120
"""Seconds without a heartbeat after which gunicorn kills a worker. Large requests hold the interpreter for seconds; a
worker that hangs must not keep its share of the requests for much longer."""

RESTART_S = 1.0
"""Seconds between two attempts to start a worker in place of one that has ended."""

COLLECT_AFTER = 200_000
"""Objects created between two runs of Python's cycle collector. With its default of 700 the collector searches a
request of 10,000 ops, which has no cycles, hundreds of times: 0.4 s of its 1.4 s."""


def listen(host: str, port: int, *, allow_public: bool = False, keys: bool = False) -> socket.socket:
    """Return a socket that listens on `host`:`port` (0: a free port).

    InvalidInput for an address that other machines can reach, unless `allow_public` or the service has `keys`.
    ServiceError when the address cannot be used.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise InvalidInput(f"host={host!r} cannot be resolved: {error.strerror}") from error
    if not ipaddress.ip_address(str(address[0])).is_loopback and not (allow_public or keys):
        raise InvalidInput(
            f"host={host!r} can be reached by others, and without keys the service asks nobody who they are; "
            "make keys (`threadcast keys add`), use 127.0.0.1, or --allow-public behind something that asks"
        )
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        raise ServiceError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    return listener


def url_of(listener: socket.socket, *, scheme: str = "http") -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def tls_context(settings: ServiceSettings) -> ssl.SSLContext | None:
    """Return what TLS needs (1.2 or newer); None without a certificate. ConfigError where it cannot be used."""
    if settings.tls_cert is None:
        if settings.tls_key is not None:
            raise ConfigError("service.tls_key is set without service.tls_cert; give the certificate, too")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, settings)
    return context


def load_certificate(context: ssl.SSLContext, settings: ServiceSettings) -> None:
    """Read the certificate chain and the key, for connections from now on; ConfigError where they cannot be used."""
    assert settings.tls_cert is not None
    try:
        # an encrypted key must not make the server ask for a password
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        key = settings.tls_key or settings.tls_cert
        raise ConfigError(f"the certificate {settings.tls_cert} and the key {key} cannot be used: {error}") from error


def serve(
    settings: ServiceSettings, listener: socket.socket, *, workers: int, threads: int, ready: Callable[[str], None]
) -> int:
    """Serve on `listener` until SIGTERM or SIGINT, and return 0 when all worker processes have ended.

    `ready` is called with the URL once, in the first worker process, when its readiness probe has passed. Returns 1
    when the workers cannot start; one line on stderr then says why.
    """
    settings = replace(  # threads are left for health checks, and for other keys
        settings, prior=settings.untrained, max_in_flight=min(settings.max_in_flight, max(threads - 1, 1)),
        max_in_flight_per_key=min(settings.max_in_flight_per_key, max(threads - 2, 1)),
    )  # fmt: skip
    form: logs.Form = "json" if settings.log_format == "json" else "text"
    logs.configure(form, of_request=request_marks.of_request)
    tls = tls_context(settings)
    url, parent = url_of(listener, scheme="https" if tls else "http"), os.getpid()
    options = {
        "bind": f"fd://{listener.detach()}", "workers": workers, "threads": threads, "worker_class": Worker,
        "preload_app": False, "raw_env": ["OMP_NUM_THREADS=1"], "timeout": STALL_S,
        "graceful_timeout": math.ceil(settings.stops_within_s), "loglevel": "warning", "logger_class": _Log,
        "control_socket_disable": True,
    }  # fmt: skip
    shared = _shared_metrics() if workers > 1 else contextlib.nullcontext()
    with (
        shared, planners.compilation.beside(), _shared_buckets(settings, workers) as settings,
    ):  # fmt: skip
        try:
            _Gunicorn(settings, options, tls, lambda: ready(url)).run()
        except SystemExit as ended:
            if os.getpid() != parent:  # a worker, which must not unwind the stack that it was forked on
                with contextlib.suppress(OSError):  # a full disk, which was reported already
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(ended.code if isinstance(ended.code, int) else 1)
            return 1 if ended.code else 0
    return 0


class _Gunicorn(BaseApplication):  # type: ignore[misc]
    """The application for gunicorn: its settings, and the functions that gunicorn's arbiter and workers call."""

    def __init__(
        self, settings: ServiceSettings, options: dict[str, Any], tls: ssl.SSLContext | None, ready: Callable[[], None]
    ) -> None:
        self._settings, self._options, self._tls, self._ready = settings, options, tls, ready
        self._first = self._replaces = False
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            if name in self.cfg.settings or name != "control_socket_disable":  # older ones have no such socket
                self.cfg.set(name, value)
        self.cfg.set("post_fork", self._forked)
        self.cfg.set("post_worker_init", self._started)
        self.cfg.set("worker_exit", self._ended)
        self.cfg.set("child_exit", _forget_metrics)

    def run(self) -> None:
        """Serve until a signal; ends with SystemExit, in the parent and in each worker."""
        _Arbiter(self).run()

    def load(self) -> Any:
        """Return the app of a worker once its readiness probe has passed; else print one line and end the server."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a certificate to reload
        from threadpoolctl import threadpool_limits

        from threadcast.service.app import create_app
        from threadcast.service.readiness import predict_one

        threadpool_limits(1, user_api="blas")  # loaded before the fork, when it did not know of OMP_NUM_THREADS
        try:
            app = create_app(self._settings)
            context: Context = app.extensions["threadcast"]
            context.store.add([])  # fails now where the store cannot be written to
            version = predict_one(context.store, context.predictor)
            if self._first and self._settings.prior:
                _log.warning(
                    "nothing is registered as %s in %s: %s forecasts until `threadcast train` makes a model",
                    self._settings.model,
                    self._settings.models,
                    version,
                )
        except ThreadcastError as error:
            if self._replaces:  # the store may be slow for a while; the others go on, and one more is started
                _log.error("a worker in place of one that ended could not start: %s", error)
                time.sleep(RESTART_S)
                sys.exit(1)
            _refuse(str(error) if self._first else None)  # the others fail for the same reason
        return app

    def _forked(self, arbiter: Arbiter, worker: Any) -> None:
        self._first, self._replaces = worker.age == 1, worker.age > arbiter.num_workers
        limits = self._settings
        worker.bounds = Bounds(limits.max_body_bytes, limits.receive_s, limits.deadline_s + ANSWER_S)
        worker.tls, worker.logs_access = self._tls, limits.access_log

    def _started(self, worker: Any) -> None:
        gc.freeze()  # objects of the libraries live as long as the process
        gc.set_threshold(COLLECT_AFTER)
        signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=self._reload, name="reload").start())
        if self._first:
            try:
                self._ready()
            except OSError as error:  # nobody could know where it listens
                _refuse(f"the URL cannot be printed: {error.strerror}")

    def _reload(self) -> None:
        """Read the certificate again, if there is one."""
        if self._tls is not None:
            try:
                load_certificate(self._tls, self._settings)
            except ConfigError as error:
                _log.error("the old certificate is kept: %s", error)

    def _ended(self, arbiter: Arbiter, worker: Any) -> None:
        planners.close()
        if self.callable is not None:
            self.callable.extensions["threadcast"].store.close()


def _refuse(why: str | None) -> NoReturn:
    """End this worker, and with it the server; print `why` on stderr."""
    if why is not None:
        print(f"threadcast: error: {why}", file=sys.stderr)  # noqa: T201 - there is no other way to tell the user
    sys.exit(Arbiter.APP_LOAD_ERROR)


class _Arbiter(Arbiter):  # type: ignore[misc]
    """gunicorn's parent process. While it stops because one worker failed, it ignores failures of other workers."""

    _halting = False

    def handle_int(self, *args: Any) -> None:
        """Ctrl-C does the same as SIGTERM: requests in progress are answered, and workers end by themselves."""
        self.handle_term(*args)

    def handle_hup(self, *args: Any) -> None:
        """SIGHUP makes workers read the certificate again. gunicorn would replace the workers."""
        self.kill_workers(signal.SIGHUP)

    def halt(self, reason: str | None = None, exit_status: int = 0) -> None:
        self._halting = True
        super().halt(reason=reason, exit_status=exit_status)

    def reap_workers(self) -> None:
        try:
            super().reap_workers()
        except HaltServer:
            if not self._halting:
                raise


class _Log(Logger):  # type: ignore[misc]
    """gunicorn's log as part of this process's, without those about workers that have printed why they cannot start."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.propagate = True

    def error(self, msg: str, *args: Any, **kwargs: Any) -> None:
        said = msg.startswith("Worker") and args[1:] == (Arbiter.APP_LOAD_ERROR,)
        if not (said or msg.startswith(("Shutting down", "Reason"))):
            super().error(msg, *args, **kwargs)


@contextlib.contextmanager
def _shared_metrics() -> Iterator[None]:
    """Collect the metrics of several worker processes in a temporary directory, named in the environment."""
    before = os.environ.get(MULTIPROCESS_DIR)
    with tempfile.TemporaryDirectory(prefix="threadcast-metrics-") as directory:
        os.environ[MULTIPROCESS_DIR] = directory
        try:
            yield
        finally:
            if before is None:
                del os.environ[MULTIPROCESS_DIR]
            else:
                os.environ[MULTIPROCESS_DIR] = before


@contextlib.contextmanager
def _shared_buckets(settings: ServiceSettings, workers: int) -> Iterator[ServiceSettings]:
    """Yield settings with which the worker processes count the requests of keys in one file, during the block."""
    if workers == 1:
        yield settings
        return
    with tempfile.TemporaryDirectory(prefix="threadcast-rates-") as directory:
        yield replace(settings, rate_buckets=Path(directory) / "buckets.sqlite")


def _forget_metrics(arbiter: Arbiter, worker: Any) -> None:
    """Remove the gauges of a worker that has ended."""
    if MULTIPROCESS_DIR in os.environ:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
