"""How many requests may be worked at at the same time."""

from __future__ import annotations

import pytest

from threadcast.service.in_flight import Places
from threadcast.service.problems import Problem


def test_one_key_leaves_places_to_others() -> None:
    places = Places(4, 2)
    places.take("greedy")
    places.take("greedy")
    with pytest.raises(Problem, match=r"2 requests with this key.*max_in_flight_per_key") as refused:
        places.take("greedy")
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
    places.take("other")
    places.give_back("greedy")
    places.take("greedy")
    places.take("other")
    with pytest.raises(Problem, match="4 requests are being worked at, which is max_in_flight;"):
        places.take("third")


def test_without_keys_only_all_requests_together_are_bounded() -> None:
    places = Places(2, 1)
    places.take(None)
    places.take(None)
    with pytest.raises(Problem, match="max_in_flight;"):
        places.take(None)
    places.give_back(None)
    places.take(None)
