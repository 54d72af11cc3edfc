"""An arbiter outlives every message: any JSON at any place is answered by an error, or acted on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.malleable.test_messages import JSON, MESSAGES, places, replaced
from threadcast.malleable.lines import Lines, line
from threadcast.malleable.sockets import ask, connect


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_json_at_any_place_ends_at_most_its_connection(
    arbitrate: Callable[..., Callable[[], None]], tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "threadcast" / "arbiter.sock"
    if not path.exists():
        arbitrate()
    message = data.draw(st.sampled_from(MESSAGES))
    at = data.draw(st.sampled_from(list(places(message))))
    wrong = replaced(message, at, data.draw(JSON))
    first = {"join": {"holds": []}} if data.draw(st.booleans()) else {"who": "all"}
    with connect(path) as rude:
        rude.sendall(line(first) + line(wrong) + line({"who": "all"}))
        answers = read_until_listed_twice(rude, first)
    assert any("error" in answer or "processes" in answer for answer in answers)
    assert ask(path, {"who": "all"})["cores"] > 0, "it goes on"


def read_until_listed_twice(connection: Any, first: dict[str, Any]) -> list[dict[str, Any]]:
    """All answers up to the list that was asked for last, or up to an error, which ends the connection."""
    lines, found = Lines(1 << 24), list[dict[str, Any]]()
    wanted = 1 + ("who" in first)
    while data := connection.recv(1 << 16):
        found += lines.feed(data)
        if sum("processes" in answer for answer in found) >= wanted or any("error" in answer for answer in found):
            break
    return found
