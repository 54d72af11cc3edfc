"""Programs as the process that builds backends reads them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from threadcast.capture.capture import capture_forward
from threadcast.runtime.backends.program_file import ReadProgram, program_file, read_program


def passed_on(function: Callable[..., Any], *arguments: Any) -> ReadProgram:
    """The program of `function(*arguments)`, written to a file and read from it."""
    content = program_file(capture_forward(function, *arguments))
    file = os.memfd_create("program")
    try:
        for offset, part in content.parts():
            os.pwrite(file, part, offset)
        assert os.fstat(file).st_size <= content.size_bytes
        return read_program(file)
    finally:
        os.close(file)
