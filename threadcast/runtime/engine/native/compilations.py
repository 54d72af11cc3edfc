"""Compiles in threads, while steps go on by what is there already."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress

from threadcast.core.errors import ExecutionError

NICE = 14
"""Priority of a compilation (nice(2)): beside steps on all cores it gets about a twentieth of one core."""


class Compilations:
    """Compilations by key, each in a thread of its own. A compiler ends with its thread, and so with the process."""

    def __init__(self) -> None:
        self._threads: dict[Hashable, threading.Thread] = {}
        self._errors: dict[Hashable, ExecutionError] = {}

    def running(self, key: Hashable, compile_it: Callable[[], object], *, hurry: bool = False) -> bool:
        """Return whether the compilation of this key still runs; the first call for a key starts it.

        With `hurry` it has the priority of the steps, else a low one.
        """
        if key not in self._threads:
            arguments = key, compile_it, hurry
            thread = threading.Thread(target=self._run, args=arguments, daemon=True, name="threadcast-compile")
            self._threads[key] = thread
            thread.start()
        return self._threads[key].is_alive()

    def wait(self, key: Hashable, timeout_s: float) -> None:
        """Return when the compilation of this key has ended, or after `timeout_s` seconds; at once where none began."""
        if (thread := self._threads.get(key)) is not None:
            thread.join(timeout_s)

    def error(self, key: Hashable) -> ExecutionError | None:
        """Return why the compilation of this key failed; None where it did not."""
        return self._errors.get(key)

    def _run(self, key: Hashable, compile_it: Callable[[], object], hurry: bool) -> None:
        if not hurry:
            with suppress(OSError):  # then at the priority that it has
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            compile_it()
        except ExecutionError as error:
            self._errors[key] = error
