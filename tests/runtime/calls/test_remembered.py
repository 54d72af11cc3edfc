"""A set that forgets what was added first keeps within its bound."""

from __future__ import annotations

from threadcast.runtime.calls.remembered import Remembered


def test_what_was_added_first_is_forgotten_first() -> None:
    found = Remembered(2)
    for item in ("a", "b", "a", "c"):
        found.add(item)
    assert ["a" in found, "b" in found, "c" in found, len(found)] == [False, True, True, 2]
