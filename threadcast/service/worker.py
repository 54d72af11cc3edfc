"""A worker process of gunicorn that answers with `HttpServer` in place of gunicorn's own parser."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
from concurrent.futures import ThreadPoolExecutor

from gunicorn.workers.base import Worker as BaseWorker

from threadcast.service.http_server import Bounds, HttpServer
from threadcast.service.logs import AccessLog
from threadcast.threads.memory import limit_arenas, return_freed_memory

HEARTBEAT_S = 1.0
"""Seconds between two signs of life to the parent process, and checks that it is still there."""

ARENAS = 2
"""Heaps that the threads share: with one for each thread, each keeps free memory that the others cannot use."""

TRIM_S = 30.0
"""Seconds between two times at which freed memory is given back to the system."""


class Worker(BaseWorker):  # type: ignore[misc]
    """Serves gunicorn's sockets until SIGTERM or SIGINT, or until the parent process is gone.

    `server` sets `bounds`, `tls` and `logs_access` before the process begins to serve.
    """

    bounds = Bounds()
    tls: ssl.SSLContext | None = None
    logs_access = False

    def run(self) -> None:
        """Serve; called by gunicorn when the application has been made."""
        limit_arenas(ARENAS)
        access = AccessLog() if self.logs_access else None
        try:
            asyncio.run(self._serve(access))
        finally:
            if access is not None:
                access.close()

    async def _serve(self, access: AccessLog | None) -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, stopping.set)
        threads = ThreadPoolExecutor(self.cfg.threads, "request")
        listeners = [listener.sock for listener in self.sockets]
        server = HttpServer(
            self.wsgi, threads, self.bounds, address=listeners[0].getsockname()[:2], most_sending=self.cfg.threads,
            refused=self._count, tls=self.tls, access=None if access is None else access.note,
        )  # fmt: skip
        for listener in listeners:
            listener.setblocking(False)
            server.add_socket(listener)
        trimmed_s = loop.time()
        while self.alive and not stopping.is_set() and self.ppid == os.getppid():  # gunicorn heard what came earlier
            self.notify()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), HEARTBEAT_S)
            if loop.time() - trimmed_s > TRIM_S:
                trimmed_s = loop.time()
                loop.run_in_executor(None, return_freed_memory)  # which waits for locks of the heaps
        await server.drain(self.cfg.graceful_timeout)
        threads.shutdown(wait=False, cancel_futures=True)

    def _count(self, method: str, status: int) -> None:
        self.wsgi.extensions["threadcast"].metrics.count_unmatched(method, status)
