"""The process that `cachegrind.CacheSimulator` runs under valgrind: it runs ops and tells valgrind when to count.

Usage: `python -m threadcast.collector.counters.simulated_run RUNS`, with an op's JSON in each line of standard input.
For each it has valgrind write the counts of RUNS runs, then those of twice as many more, and answers with a line of
JSON: `{"parts": [N, M]}`, the numbers that valgrind gave to the two files, or `{"error": text}`.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
from typing import Any

from threadcast.core import Op

_TOOL = ord("C") << 24 | ord("T") << 16
DUMP, ZERO, START, STOP = _TOOL, _TOOL + 1, _TOOL + 4, _TOOL + 5
"""Client requests of `valgrind/callgrind.h`."""

_REQUEST_CODE = bytes.fromhex(
    "4889f8"  # mov  rax, rdi         the request
    "31d2"  #   xor  edx, edx         the answer without valgrind
    "48c1c703"  # rol rdi, 3          four rotations by 128 bits in all, which change nothing:
    "48c1c70d"  # rol rdi, 13         valgrind knows a request by them
    "48c1c73d"  # rol rdi, 61
    "48c1c733"  # rol rdi, 51
    "4887db"  # xchg rbx, rbx
    "4889d0"  # mov  rax, rdx
    "c3"  #     ret
)
"""The client request sequence of `valgrind/valgrind.h` for x86-64, as a C function of a pointer to its arguments."""


class Valgrind:
    """Sends client requests to the valgrind that runs this process; without valgrind they do nothing."""

    def __init__(self) -> None:
        self._code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._code.write(_REQUEST_CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._code))
        self._call = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)(address)

    def request(self, code: int) -> None:
        """Send one request without arguments."""
        arguments = (ctypes.c_uint64 * 6)(code)
        self._call(ctypes.addressof(arguments))


class _Simulation:
    """Runs ops while valgrind counts; `parts` is the number of files that it has written."""

    def __init__(self, runs: int) -> None:
        self._runs, self._valgrind, self._parts = runs, Valgrind(), 0

    def simulate(self, op: Op) -> list[int]:
        """Run `op`, and return the numbers of the two files with its counts."""
        from threadcast.capture.graph.program import below_autograd
        from threadcast.collector.operators import prepare

        prepared = prepare(op)

        def run(count: int) -> None:
            for _ in range(count):
                prepared.run()

        with below_autograd():
            run(2)  # makes kernels and maps memory
            self._valgrind.request(START)
            try:
                run(1)  # fills the simulated caches
                self._valgrind.request(ZERO)
                run(self._runs)
                self._dump()
                run(2 * self._runs)
                self._dump()
            finally:
                self._valgrind.request(STOP)  # else all that follows would be simulated too
        return [self._parts - 1, self._parts]

    def _dump(self) -> None:
        self._valgrind.request(DUMP)
        self._parts += 1


def main() -> None:
    """Simulate the ops on standard input, with a number of runs from the command line, and answer each."""
    import torch

    torch.set_num_threads(1)
    simulation = _Simulation(int(sys.argv[1]))
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"parts": simulation.simulate(Op.from_json(json.loads(line)))}
        except Exception as error:  # noqa: BLE001 - a kernel may raise anything; the caller is told
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
