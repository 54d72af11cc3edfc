"""Whether a file of the folder of plans is one that optimised steps can read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from threadcast.core.errors import BundleError, FormatError
from threadcast.core.json_reading import check_schema, member, parse
from threadcast.runtime.plans.backend_history import NAME as BACKENDS
from threadcast.runtime.plans.backend_history import SCHEMA
from threadcast.runtime.plans.plan_store import read_backend, read_program, read_tried, stored_plan
from threadcast.runtime.plans.variant import MemoryFormat

_READERS: dict[str, Callable[[str], object]] = {
    ".layout": MemoryFormat, ".backend": read_backend, ".tried": read_tried, ".program": read_program,
}  # fmt: skip
"""What reads the text of a file, by the end of its name."""


def check_plan_file(name: str, content: bytes) -> None:
    """Raise BundleError where optimised steps could not read this file: a plan, a memory format, a backend's gain,
    what was tried, what runs a program, or the history of backends."""
    try:
        if (read := _READERS.get(PurePath(name).suffix)) is not None:
            read(content.decode())
        elif name == BACKENDS:
            document = parse(content, what=name)
            check_schema(document, SCHEMA)
            member(document, "found", list)
        else:
            stored_plan(parse(content, what=name))
    except (FormatError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise BundleError(f"{name} is not a file that optimised steps can read: {error}") from error
