"""Escapes characters in text from files and networks that a terminal must not get."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with every line break, control character and unpaired surrogate escaped, so that it is a single line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)
