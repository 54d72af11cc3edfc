"""Which names a function's code can read: global variables, attributes, and modules that it imports."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}
_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM"}
_REFLECTIVE = {
    "getattr", "hasattr", "setattr", "delattr", "vars", "dir", "eval", "exec", "globals", "locals", "attrgetter",
    "asdict", "astuple", "__dict__", "__getattribute__", "__setattr__", "__delattr__", "__getstate__", "__reduce__",
    "__reduce_ex__", "_getframe", "currentframe", "f_globals", "f_locals",
}  # fmt: skip
"""Names by which code reads or sets attributes that it does not spell out. A `case` with a class does so too."""
_IMPORTING = {"modules", "import_module", "__import__"}
"""Names by which code reaches modules that it does not import by a statement, as `sys.modules["__main__"]`."""


@dataclass(frozen=True, slots=True)
class CodeNames:
    """The names in a piece of code, and in the functions that it defines."""

    globals: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[str]
    """Modules that the code may import or look up, by full name; among them may be texts that are no module."""
    reflective: bool
    """Whether it may read or set attributes by names that are computed."""
    texts: frozenset[str]
    """Its constants that are names, by which it may ask for what does not exist yet."""


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> CodeNames:
    """The names that `code` reads or writes, those of inner functions among them."""
    found: dict[str, set[str]] = {"globals": set(), "attributes": set(), "imports": set()}
    matches = False
    for instruction in dis.get_instructions(code):
        kind = instruction.opname
        matches |= kind == "MATCH_CLASS"
        where = "globals" if kind in _GLOBAL else "attributes" if kind in _ATTRIBUTE else "imports"
        if where != "imports" or kind == "IMPORT_NAME":
            found[where].add(instruction.argval)
    texts = {text for constant in code.co_consts for text in _texts_in(constant)}
    if not _IMPORTING.isdisjoint(found["globals"] | found["attributes"]):
        found["imports"].update(constant for constant in code.co_consts if isinstance(constant, str))
    inner = [names_in(one) for one in code.co_consts if isinstance(one, CodeType)]
    return CodeNames(
        frozenset(found["globals"]).union(*(names.globals for names in inner)),
        frozenset(found["attributes"]).union(*(names.attributes for names in inner)),
        frozenset(found["imports"]).union(*(names.imports for names in inner)),
        matches
        or any(names.reflective for names in inner)
        or not _REFLECTIVE.isdisjoint(found["globals"] | found["attributes"]),
        frozenset(texts).union(*(names.texts for names in inner)),
    )


def _texts_in(constant: object) -> Iterator[str]:
    if isinstance(constant, str) and constant.isidentifier():
        yield constant
    elif isinstance(constant, tuple | frozenset):
        for part in constant:
            yield from _texts_in(part)
