"""Text from files and networks, made fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with every line break, control character and unpaired surrogate as its escape: one line, no more."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text)
