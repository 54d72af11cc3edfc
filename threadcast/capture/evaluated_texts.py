"""Which texts code gives to the built-in functions that make code of them, as `eval("layer(x) * factor")` does."""

from __future__ import annotations

import dis
from collections.abc import Sequence
from dis import Instruction
from types import CodeType

EVALUATORS = frozenset(("eval", "exec", "compile"))
"""Built-in functions that make code of texts."""
_WITHOUT_EFFECT = {"PRECALL", "KW_NAMES", "EXTENDED_ARG", "NOP"}
_JUMPS = {*dis.hasjrel, *dis.hasjabs}


def evaluated(instructions: Sequence[Instruction]) -> tuple[list[CodeType], set[str]]:
    """The code in the texts that built-in functions get, and the names of those functions that may get other texts.

    Only a constant that is the first argument of a call is known. A function that is used in another way, or gets a
    text that is no code, may get any.
    """
    codes: list[CodeType] = []
    others: set[str] = set()
    relevant = [one for one in instructions if one.opname not in _WITHOUT_EFFECT]
    for i, one in enumerate(relevant, 1):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and one.argval in EVALUATORS:
            i += relevant[i].opname == "PUSH_NULL"
            code = _code_of(relevant[i].argval) if _is_first_argument(relevant[i:]) else None
            if code is None:
                others.add(one.argval)
            else:
                codes.append(code)
    return codes, others


def _is_first_argument(instructions: Sequence[Instruction]) -> bool:
    """Whether the value that the first instruction adds to the stack is a constant, and is passed as it is."""
    if instructions[0].opname != "LOAD_CONST":
        return False
    above = 0  # how many values lie on it
    for one in instructions[1:]:
        if one.opname == "CALL":
            if one.arg == above + 1:
                return True
            above -= (one.arg or 0) + 1
        elif one.opcode in _JUMPS or (above == 0 and not _adds(one)):
            return False
        else:
            above += dis.stack_effect(one.opcode, one.arg)
        if above < 1:  # it was used, together with what lay on it
            return False
    return False


def _adds(one: Instruction) -> bool:
    """Whether an instruction only adds a value to the stack."""
    if one.opname.startswith("LOAD_"):
        return one.opname not in ("LOAD_ATTR", "LOAD_METHOD")
    return one.opname == "PUSH_NULL" or (one.opname in ("BUILD_MAP", "BUILD_LIST") and one.arg == 0)


def _code_of(text: object) -> CodeType | None:
    """The code in a text; None where it is no text of code."""
    if not isinstance(text, str):
        return None
    try:
        return compile(text.strip(" \t"), "<text>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
