"""The system call `perf_event_open(2)`, by ctypes: events of one thread that are counted and read together.

Every event is opened once for each thread id: an event of the whole process, even an inherited one, misses the pools of
threads that exist already. Events are also inherited, so that threads which a counted thread starts later are counted
too (in groups since Linux 4.13). Numbers are those of `include/uapi/linux/perf_event.h`, which never change.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from threadcast.collector.counters.counts import Reading
from threadcast.collector.counters.events import Event

_SYSCALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
"""Number of `perf_event_open` by `platform.machine()`."""

_ATTRIBUTE_BYTES = 112  # PERF_ATTR_SIZE_VER5, of Linux 4.1
_READ_FORMAT = 0b1111  # time enabled, time running, the events' ids, and all events of a group at once
_DISABLED, _INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 0, 1 << 1, 1 << 5, 1 << 6
_CLOSE_ON_EXEC = 8

_NO_DATA, _READS = (0x2000_0000, 0x4000_0000) if platform.machine() == "ppc64le" else (0, 0x8000_0000)
_ENABLE, _DISABLE, _ID = _NO_DATA | 0x2400, _NO_DATA | 0x2401, _READS | 8 << 16 | 0x2407
"""Requests of ioctl(2); how a request's direction is encoded differs by processor."""


class GroupReading(NamedTuple):
    """The counts of a group of events since it was opened, by the kernel's id of each event.

    `enabled_ns` is the time for which its thread ran while the group was enabled, `running_ns` the part of it in which
    the processor counted it.
    """

    enabled_ns: int
    running_ns: int
    values: Mapping[int, int]


class Kernel:
    """The system calls on events. All but `close` raise OSError where the kernel refuses."""

    def open(self, event: Event, thread: int, *, leader: int | None) -> int:
        """A file descriptor of `event` in a thread (0: the calling one).

        Without `leader` it leads a new group, which does not count yet; else it joins the leader's group.
        """
        if event.kind == "hardware":
            return self._open(event, thread, leader, _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR)
        try:
            return self._open(event, thread, leader, _EXCLUDE_HYPERVISOR)
        except PermissionError:
            if event.in_kernel:
                raise
            return self._open(event, thread, leader, _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR)

    def _open(self, event: Event, thread: int, leader: int | None, flags: int) -> int:
        attribute = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
        flags |= _INHERIT | (_DISABLED if leader is None else 0)
        # type, size, config, sample period, sample type, read format, flags; the rest stays zero
        struct.pack_into(
            "=IIQQQQQ", attribute, 0, event.type, _ATTRIBUTE_BYTES, event.config, 0, 0, _READ_FORMAT, flags
        )
        return perf_event_open(attribute, thread, leader)

    def identify(self, descriptor: int) -> int:
        """The kernel's id of the event."""
        number = bytearray(8)
        fcntl.ioctl(descriptor, _ID, number)
        return int(struct.unpack("=Q", number)[0])

    def enable(self, leader: int) -> None:
        """Begin to count the leader's group."""
        fcntl.ioctl(leader, _ENABLE, 0)

    def disable(self, leader: int) -> None:
        """End counting the leader's group; its counts stay."""
        fcntl.ioctl(leader, _DISABLE, 0)

    def read(self, leader: int) -> GroupReading:
        """The counts of the leader's group."""
        data = os.read(leader, 4096)
        count, enabled_ns, running_ns = struct.unpack_from("=QQQ", data)
        values = (struct.unpack_from("=QQ", data, 24 + 16 * i) for i in range(count))
        return GroupReading(enabled_ns, running_ns, {number: value for value, number in values})

    def close(self, descriptor: int) -> None:
        """Close the descriptor of an event."""
        os.close(descriptor)


def perf_event_open(attribute: ctypes.Array[ctypes.c_char], thread: int, leader: int | None, *, cpu: int = -1) -> int:
    """The descriptor of the event that `struct perf_event_attr` describes; `cpu` -1: counted on every CPU."""
    number = _SYSCALLS.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        raise OSError(errno.ENOSYS, f"no perf_event_open for {platform.system()} on {platform.machine()}")
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.syscall(
        ctypes.c_long(number), attribute, ctypes.c_int(thread), ctypes.c_int(cpu),
        ctypes.c_int(-1 if leader is None else leader), ctypes.c_ulong(_CLOSE_ON_EXEC),
    )  # fmt: skip
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(descriptor)


KERNEL = Kernel()


class OpenGroup:
    """Events of one thread that the processor counts at the same time, from `enable` to `disable`.

    `thread` is a kernel thread id, 0 the calling thread. OSError where the kernel refuses one of the events; nothing
    stays open then. `close` closes all descriptors.
    """

    def __init__(self, events: Sequence[Event], thread: int, *, kernel: Kernel = KERNEL) -> None:
        self._kernel = kernel
        self._descriptors: list[int] = []
        self._names: dict[int, str] = {}
        try:
            for event in events:
                leader = self._descriptors[0] if self._descriptors else None
                self._descriptors.append(kernel.open(event, thread, leader=leader))
                self._names[kernel.identify(self._descriptors[-1])] = event.name
            self._last = kernel.read(self._descriptors[0])
        except BaseException:
            self.close()
            raise

    def enable(self) -> None:
        """Begin to count."""
        self._kernel.enable(self._descriptors[0])

    def disable(self) -> None:
        """End counting."""
        self._kernel.disable(self._descriptors[0])

    def read(self) -> dict[str, Reading]:
        """What was counted since the last call of this method, by event name."""
        before, now = self._last, self._kernel.read(self._descriptors[0])
        self._last = now
        enabled_ns, running_ns = now.enabled_ns - before.enabled_ns, now.running_ns - before.running_ns
        return {
            name: Reading(now.values[number] - before.values[number], enabled_ns, running_ns)
            for number, name in self._names.items()
        }

    def close(self) -> None:
        """Close all descriptors; a group that is closed already stays so."""
        while self._descriptors:
            self._kernel.close(self._descriptors.pop())
