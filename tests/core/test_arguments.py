"""Arguments that are not allowed are named, with what is wanted."""

from __future__ import annotations

import pytest

from threadcast.core.arguments import check, check_whole, did_you_mean
from threadcast.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("value", "slip", "said"),
    [
        (3, "", "size=3 must be small"),
        (3, "is it in bytes?", "size=3 must be small; is it in bytes?"),
        (int, "", "size=<class 'int'> must be small; that is a class, give an object of it"),
        (list(range(99)), "", "size=<list> must be small"),
        ("a\nb", "", "size='a\\nb' must be small"),
    ],
)
def test_a_message_says_the_argument_what_was_given_what_is_wanted_and_the_likely_slip(
    value: object, slip: str, said: str
) -> None:
    check(True, "size", value, "small", slip)
    with pytest.raises(InvalidInput) as error:
        check(False, "size", value, "small", slip)
    assert str(error.value) == said


@pytest.mark.parametrize("value", [0, True, 1.0, "1", None])
def test_whole_numbers_are_whole_and_large_enough(value: object) -> None:
    check_whole("n", 1)
    with pytest.raises(InvalidInput, match=r"n=.* must be a whole number of at least 1"):
        check_whole("n", value)


def test_the_nearest_name_is_hinted_at() -> None:
    assert did_you_mean("lents", ["lenet", "lstm"]) == "did you mean 'lenet'? "
    assert did_you_mean("transformer", ["lenet", "lstm"]) == ""
