"""A process's side of its connection to the arbiter, with an arbiter played by the test and a clock of its own."""

from __future__ import annotations

import selectors
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from threadcast.malleable.arbiter_link import LEARNING_S, LONGEST_REFUSED_S, REFUSED_S, REPORT_S, ArbiterLink, Terms
from threadcast.malleable.channel import Channel
from threadcast.malleable.limits import Cores
from threadcast.malleable.messages import Bounds, Confirm, Join, requests_of
from threadcast.malleable.sockets import listen

BOUNDS, ONE, BOTH = Bounds(1, 2), ((0,),), ((0,), (1,))


class Linked:
    """A process's link, what it counts and is given, and the arbiter's end of its connection."""

    def __init__(self, path: Path) -> None:
        self.listening, self.selector = listen(path), selectors.DefaultSelector()
        self.now_s, self.steps, self.rates, self.given = 0.0, 0.0, dict[int, float](), list[Cores]()
        self.learning = ""
        self.arbiter: Channel | None = None
        self.link = ArbiterLink(
            path, Terms("x", 2.0), self.selector, steps=lambda: self.steps, expected=lambda: dict(self.rates),
            assigned=self.assign, learning=lambda: self.learning, now=lambda: self.now_s,
        )  # fmt: skip

    def assign(self, cores: Cores) -> Cores:
        self.given.append(cores)
        return cores

    def accept(self) -> bool:
        """Whether the process has called."""
        try:
            accepted, _ = self.listening.accept()
        except BlockingIOError:
            return False
        self.drop()
        self.arbiter = Channel(accepted)
        return True

    def look(self, after_s: float = 0.0, bounds: Bounds = BOUNDS, *, has_all: bool = False) -> list[Any]:
        """What the process says at its next look."""
        self.now_s += after_s
        self.link.look(bounds, self.given[-1] if self.given else (), has_all=has_all)
        self.accept()
        return self.heard()

    def heard(self) -> list[Any]:
        if self.arbiter is None:
            return []
        return [request for message in self.arbiter.receive() for request in requests_of(message).items()]

    def say(self, message: Any) -> None:
        assert self.arbiter is not None
        self.arbiter.send(message)
        self.link.hear()

    def drop(self) -> None:
        if self.arbiter is not None:
            self.arbiter.close()
            self.arbiter = None
            self.link.hear()

    def close(self) -> None:
        self.link.close()
        self.drop()
        self.listening.close()
        self.selector.close()


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Linked]:
    found = Linked(tmp_path / "arbiter.sock")
    yield found
    found.close()


def test_a_process_joins_once_and_then_says_only_what_has_changed(linked: Linked) -> None:
    assert linked.look() == [("join", Join("x", 2.0, BOUNDS)), ("steps", 0.0)]
    assert linked.look() == []
    linked.steps, linked.rates = 5.0, {1: 2.0}
    assert linked.look(bounds=Bounds(1, 1, ONE)) == [
        ("bounds", Bounds(1, 1, ONE)),
        ("progress", {1: 2.0}),
        ("steps", 5.0),
    ]
    assert linked.look(bounds=Bounds(1, 1, ONE)) == []


def test_one_that_has_all_cores_reports_its_steps_less_often(linked: Linked) -> None:
    linked.look(has_all=True)
    linked.steps = 1.0
    assert linked.look(REPORT_S / 2, has_all=True) == []
    assert linked.look(REPORT_S, has_all=True) == [("steps", 1.0)]


def test_what_is_being_learned_is_reported_once_a_second_and_to_the_next_arbiter(linked: Linked) -> None:
    linked.learning = "1 call"
    assert ("learning", "1 call") in linked.look()
    linked.learning = "2 calls"
    assert linked.look(LEARNING_S / 2) == []
    assert linked.look(LEARNING_S / 2) == [("learning", "2 calls")]
    linked.drop()
    assert ("learning", "2 calls") in linked.look()
    linked.learning = ""
    assert linked.look(LEARNING_S) == [("learning", "")]


def test_orders_are_obeyed_and_confirmed_and_told_to_the_next_arbiter(linked: Linked) -> None:
    linked.look()
    linked.say({"cores": ONE, "order": 7})
    assert linked.heard() == [("holds", Confirm(7, ONE))]
    linked.drop()
    assert linked.look() == [("join", Join("x", 2.0, BOUNDS, ONE)), ("steps", 0.0)]
    assert linked.given == [ONE]


@pytest.mark.parametrize("heard", [True, False])
def test_an_arbiter_that_refuses_a_process_is_left_alone_twice_as_long_each_time(linked: Linked, heard: bool) -> None:
    waits = [REFUSED_S, 2 * REFUSED_S, 4 * REFUSED_S]
    for wait_s in waits:
        linked.link.look(BOUNDS, (), has_all=False)
        assert linked.accept()
        if heard:
            linked.heard()
        linked.say({"error": "not you"})
        linked.drop()
        linked.now_s += 0.9 * wait_s
        linked.link.look(BOUNDS, (), has_all=False)
        assert not linked.accept(), "it is left alone"
        linked.now_s += 0.11 * wait_s
    assert 4 * REFUSED_S < LONGEST_REFUSED_S
    linked.look()
    linked.say({"cores": BOTH, "order": 1})
    linked.say({"error": "you again"})
    linked.drop()
    linked.now_s += REFUSED_S
    linked.link.look(BOUNDS, (), has_all=False)
    assert linked.accept(), "an order in between begins anew"


def test_nonsense_ends_the_connection_and_changes_nothing(linked: Linked) -> None:
    linked.look()
    assert linked.arbiter is not None
    linked.arbiter.send({"cores": "all"})
    linked.link.hear()
    assert linked.given == []
    with pytest.raises(ConnectionResetError):
        linked.heard()
    assert linked.look()[0] == ("join", Join("x", 2.0, BOUNDS))


def test_an_arbiter_that_reads_nothing_is_given_up(linked: Linked) -> None:
    linked.look()
    for number in range(10_000):
        linked.steps = number
        linked.link.look(BOUNDS, (), has_all=False)
        if linked.accept():  # a second connection: the first was given up
            return
    pytest.fail("it went on writing to nobody")


def test_without_an_arbiter_nothing_happens(tmp_path: Path) -> None:
    with selectors.DefaultSelector() as selector:
        link = ArbiterLink(
            tmp_path / "none.sock", Terms(), selector, steps=lambda: 0.0, expected=dict, assigned=lambda cores: cores
        )
        link.look(BOUNDS, (), has_all=True)
        link.hear()
        link.close()
        assert not selector.get_map()
