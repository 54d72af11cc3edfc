"""A listening socket that rests while no connection can be accepted because too many files are open."""

from __future__ import annotations

import errno
import logging
import socket
from typing import Any

from tornado.ioloop import IOLoop

REST_S = 0.1
"""Seconds until the next attempt to accept a connection. Without a rest, the event loop would find the waiting
connection again at once, for as long as nothing is closed."""

_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger(__name__)


class Listener:
    """A listening socket for a server of Tornado's, in its event loop; all that the server uses of a socket."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._told = False
        """Whether it was logged that no connection can be accepted."""

    def fileno(self) -> int:
        """Return the file descriptor, -1 once the socket is closed."""
        return self._listening.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._listening.close()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; BlockingIOError where none waits, and where none can be accepted for now.

        In the latter case the event loop does not watch the socket for `REST_S`.
        """
        try:
            accepted = self._listening.accept()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            if not self._told:
                self._told = True
                _log.error("no connection can be accepted for now: %s", error.strerror)
            loop = IOLoop.current()
            loop.update_handler(self, 0)
            loop.call_later(REST_S, self._watch, loop)
            raise BlockingIOError(error.errno, error.strerror) from error
        self._told = False
        return accepted

    def _watch(self, loop: IOLoop) -> None:
        if self.fileno() >= 0:  # the server has not stopped
            loop.update_handler(self, IOLoop.READ)
