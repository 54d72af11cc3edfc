"""The process that `cachegrind.simulate` runs under valgrind: it runs one op and tells valgrind when to count.

Usage: `python -m threadcast.collector.counters.simulated_run RUNS`, with the op's JSON on standard input. It has
valgrind write the counts of RUNS runs, then those of twice as many more.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import sys

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


def main() -> None:
    """Run the op on standard input, with a number of runs from the command line, and have valgrind write the counts."""
    import torch

    from threadcast.capture.program import below_autograd
    from threadcast.collector.operators import prepare
    from threadcast.core import Op

    runs = int(sys.argv[1])
    torch.set_num_threads(1)
    prepared = prepare(Op.from_json(json.load(sys.stdin)))
    valgrind = Valgrind()

    def run(count: int) -> None:
        for _ in range(count):
            prepared.run()

    with below_autograd():
        run(2)  # makes kernels and maps memory
        valgrind.request(START)
        run(1)  # fills the simulated caches
        valgrind.request(ZERO)
        run(runs)
        valgrind.request(DUMP)
        run(2 * runs)
        valgrind.request(DUMP)
        valgrind.request(STOP)  # else the interpreter's end is simulated too, which takes as long as all the rest


if __name__ == "__main__":
    main()
