"""Results are found by the object, and only by it."""

from __future__ import annotations

from threadcast.core.identity_cache import MOST, CachedByIdentity


def test_a_result_is_computed_once_for_an_object_and_anew_for_an_equal_one() -> None:
    asked: list[tuple[int, ...]] = []

    @CachedByIdentity
    def total(numbers: tuple[int, ...]) -> int:
        asked.append(numbers)
        return sum(numbers)

    first, equal = tuple(range(3)), tuple(range(3))
    assert [total(first), total(first), total(equal)] == [3, 3, 3]
    assert len(asked) == 2


def test_so_many_objects_as_there_are_results_are_kept_at_most() -> None:
    same = CachedByIdentity(lambda numbers: numbers)
    for number in range(3 * MOST):
        assert same((number, 0)) == (number, 0)
    assert len(same._found) <= MOST
