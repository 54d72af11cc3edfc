"""What rounds of a tournament tell later processes, and what not."""

from __future__ import annotations

import pytest

from threadcast.collector.busy import CpuTimes
from threadcast.runtime.tuner import rounds
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.events import Instruction, Key, LeftOut, Offered, Place, Ran, RunStage, Staged
from threadcast.runtime.tuner.rounds import Rounds
from threadcast.runtime.tuner.tournament import Tournament


class Looked(Rounds):
    """Rounds of a candidate that is looked at in calls, and compared where it is ready at once."""

    def prepare(self, key: Key) -> None:
        self.tell(Staged(key, Place.CALL))

    def carry_out(self, instruction: Instruction) -> None:
        """Nothing follows."""


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("others", [0.0, 0.05, 0.2])
def test_what_was_tried_while_others_took_the_cores_is_known_to_be_loud(
    others: float, ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at operators that is slow leaves a plan out, and turns of calls do: both wait for the slowest core."""
    now_s, taken_s = 0.0, 0.0
    monkeypatch.setattr(
        rounds, "_cpu_times", lambda: CpuTimes({0: (round(100 * taken_s), 0, round(100 * now_s))}, 0.0, now_s)
    )
    tried = Looked(Tournament("eager"), Budget())
    tried.tell(Offered("plan", ready=ready))
    looks = 0
    for _ in range(80):
        what = tried.next()
        seconds = 0.3 if what.key == "plan" else 0.1
        now_s, taken_s = now_s + seconds, taken_s + seconds * (others if tried.tournament.learns else 0.9)
        tried.tell(Ran(now_s - seconds, seconds, seconds))
        if isinstance(what, RunStage):
            looks += 1
            if looks == 3:
                tried.tell(LeftOut("plan", "it was far slower"))
    tried.do()
    assert tried.tournament.best == "eager"
    assert tried.loud == (others > 0.1)
