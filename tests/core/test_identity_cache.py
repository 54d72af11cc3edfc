"""Results are found by the object, and only by it."""

from __future__ import annotations

from threadcast.core.identity_cache import CachedByIdentity


def test_a_result_is_computed_once_for_an_object_and_anew_for_an_equal_one() -> None:
    asked: list[tuple[int, ...]] = []

    @CachedByIdentity
    def total(numbers: tuple[int, ...]) -> int:
        asked.append(numbers)
        return sum(numbers)

    first, equal = tuple(range(3)), tuple(range(3))
    assert [total(first), total(first), total(equal)] == [3, 3, 3]
    assert len(asked) == 2
