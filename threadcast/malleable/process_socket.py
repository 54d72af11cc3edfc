"""The socket at which other programs ask a process which cores it uses, and tell it to use others."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from threadcast.core.errors import FormatError, InvalidInput
from threadcast.malleable.channel import Channel
from threadcast.malleable.sockets import file_id, listen, peer, remove


class ProcessSocket:
    """Listens at `path` and answers each message with the JSON object that `answer` returns for it.

    If `answer` raises InvalidInput, an error is sent. The sockets are registered in `selector` with a callback as data;
    the selector's owner must call it when its socket is ready, and `listen_again` every now and then: once a
    connection cannot be accepted, as without a free file descriptor, none is until then.

    Its file is removed as soon as the process `instead_of` connects: that will listen there itself.
    """

    def __init__(
        self, path: Path, selector: selectors.BaseSelector, answer: Callable[[dict[str, Any]], dict[str, Any]],
        *, instead_of: int | None = None,
    ) -> None:  # fmt: skip
        self._path, self._selector, self._answer, self._instead_of = path, selector, answer, instead_of
        self._asking: set[Channel] = set()
        self._listening = listen(path)
        self._file = file_id(path)
        self._rests = False
        selector.register(self._listening, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Stop listening, and remove the socket file if it is still this one's."""
        registered = self._selector.get_map().values()
        for one in [key.fileobj for key in registered if key.fileobj in (self._listening, *self._asking)]:
            self._selector.unregister(one)  # without the listening one where that rests
        self.abandon()
        remove(self._path, self._file)

    def abandon(self) -> None:
        """Close a forked child's copies of the sockets; the parent's stay open."""
        self._listening.close()
        for channel in self._asking:
            channel.close()

    def _accept(self) -> None:
        try:
            accepted, _ = self._listening.accept()
        except OSError:  # whoever called has gone, or the program has too many open files
            self._selector.unregister(self._listening)  # else it is ready again at once
            self._rests = True
            return
        if peer(accepted) == self._instead_of:
            remove(self._path, self._file)
        channel = Channel(accepted)
        self._asking.add(channel)
        self._selector.register(channel, selectors.EVENT_READ, partial(self._read, channel))

    def listen_again(self) -> None:
        """Accept connections again where one could not be accepted."""
        if self._rests:
            self._rests = False
            self._selector.register(self._listening, selectors.EVENT_READ, self._accept)

    def _read(self, channel: Channel) -> None:
        try:
            for message in channel.receive():
                channel.send(self._answered(message))
                if channel.has_unsent:
                    raise BlockingIOError("it does not read its answers")
        except FormatError as error:  # no message at all: what follows cannot be read either
            self._drop(channel, str(error))
        except OSError:
            self._drop(channel)

    def _answered(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._answer(message)
        except InvalidInput as error:
            return {"error": str(error)}

    def _drop(self, channel: Channel, why: str = "") -> None:
        with suppress(OSError):
            if why:
                channel.send({"error": why})
        self._selector.unregister(channel)
        self._asking.discard(channel)
        channel.close()
