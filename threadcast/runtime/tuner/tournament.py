"""Chooses among candidates by running them in turns in the caller's own calls: a pure state machine.

`Tournament.handle(event)` is its only entry. It uses no clock, file, thread or tensor, and logs all events, so that a
tournament can be replayed (`replay`) and told (`Tournament.story`). A caller's calls look like this:

    Offered ...                  what may be faster, with what it is expected to gain and to cost
    Next -> Prepare(a)           do what has to be done for `a` between two calls, and report Staged, Ready or LeftOut
    Next -> RunStage(a)          a part of the preparation of `a` runs the next call, such as timing its operators
    Next -> Run(b)               a candidate runs the next call: the best one, or one that is compared with it
    Ran                          after each call

The best candidate runs all calls but those that prepare or compare another one. One other candidate at a time is
compared: in turns with the best (`Guard`). Which is prepared or compared next is decided by what it is expected to gain
for each second that it costs, within the seconds that may be spent (`Next.left_s`). What was kept is looked at again,
with ever longer waits: where its calls alone are not clearly faster than the second best was, both are compared anew.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from threadcast.core.gains import PAIRS_AT_LEAST
from threadcast.runtime.tuner import events as to
from threadcast.runtime.tuner.guard import Verdict
from threadcast.runtime.tuner.standings import AGAIN, MOST_EAGER, Standing, Standings, Status, Turns, Watch

MOST_BESIDE = 3
"""Most comparisons that a candidate loses while something computes beside it, and that are made anew."""
MOST_PASSED = 20
"""Most calls in a row of what was kept that need not be timed. A convention."""
_STORY, _LOG = 200, 5_000


class Illegal(RuntimeError):
    """An event that cannot come now: a bug in threadcast. Its text ends with the tournament's story."""


class Tournament(Standings):
    """Which of several candidates runs a call; `baseline` is what runs it without any.

    `baseline_s` are seconds of calls before, which the baseline ran. `told` is called with each line of the story.
    """

    def __init__(
        self, baseline: to.Key, *, baseline_s: Sequence[float] = (), told: Callable[[str], None] = lambda _: None
    ) -> None:
        super().__init__(baseline, baseline_s)
        self.comparison: Turns | None = None
        self.settled = False
        """Whether what was found to be the fastest runs, and nothing else is being prepared or compared in calls."""
        self.held_back = False
        """Whether the best ran the last call only because no time may be spent on what comes next."""
        self.calls = 0
        self.log: list[to.Event] = []
        """The first events, which take 0.6 MB at most: with them it can be replayed."""
        self._story: deque[str] = deque(maxlen=_STORY)
        self._told = told
        self._watch = Watch()
        self._compared = False
        self.chosen: to.Run | to.RunStage | None = None
        """What runs the call that comes, or ran the last one."""
        self._counts = False
        """Whether that call tells how fast it is."""

    def handle(self, event: to.Event) -> to.Instructions:
        """Take note of what happened, and return what to do, in this order. `Next` gives one thing to do."""
        if len(self.log) < _LOG:
            self.log.append(event)
        match event:
            case to.Next():
                return self._next(event)
            case to.Ran():
                return self._ran(event)
            case to.Passed():
                self.calls += event.calls
                self._watch.passed(event.calls)
            case to.Offered():
                return self._offered(event)
            case to.Staged():
                standing = self._standing(event.key, "staged", but=(self.best, self.challenger))
                if standing.status is Status.LOST:  # what it took says little of what it will take
                    standing.step_s = None
                standing.status, standing.stage = Status.STAGED, event
                standing.lost_s = standing.lost_s if event.begun else 0.0
            case to.Ready():
                standing = self._standing(event.key, "ready")
                standing.status, standing.stage, standing.open = Status.READY, None, True
                if standing.step_s is None:
                    standing.step_s, standing.first_s = event.step_s, event.first_s
            case to.LeftOut():
                return self._without(event.key, event.reason, differs=event.differs)
            case to.Resumed():
                return self._resumed(event)
        return ()

    # what is known

    @property
    def challenger(self) -> to.Key | None:
        """The candidate that is being compared with the best; None while none is."""
        return None if self.comparison is None else self.comparison.other

    @property
    def learns(self) -> bool:
        """Whether the call that comes, or ran last, tells something of a candidate."""
        return isinstance(self.chosen, to.RunStage) or (self.comparison is not None and self._counts)

    @property
    def goes_on(self) -> bool:
        """Whether a part of a preparation, or a comparison, has begun and is not over."""
        return self.comparison is not None or any(
            one.stage is not None and one.stage.begun for one in self.standings.values()
        )

    @property
    def confirmed(self) -> bool:
        """Whether calls of what was kept have shown how fast it is alone."""
        return self._watch.looked or self._watch.waived or self.best == self.baseline

    @property
    def idle(self) -> bool:
        """Whether nothing is left to prepare or to compare, as far as is known now."""
        return self.comparison is None and not any(self.waiting())

    def waits(self, key: to.Key) -> bool:
        """Return whether a candidate is still to be prepared or compared, and may be worth it."""
        return key == self.challenger or (key in self.standings and self.is_open(self.standings[key]))

    def comes_first(self, key: to.Key) -> bool:
        """Return whether a candidate is at work that may be worth it, and none that promises more waits for seconds."""
        standing = self.standings.get(key)
        if standing is None or standing.status is not Status.STAGED or not self.is_open(standing):
            return False
        return all(self.value(one) <= self.value(standing) for one in self.waiting()[0])

    @property
    def outlook(self) -> to.Outlook:
        """What is learned next, for one who decides whether calls come here at all."""
        if self.comparison is not None:
            return to.Outlook(to.Place.CALL, 0.0 if self.comparison.guard.begun else self._pair_s(self.comparison))
        if self.best == self.baseline and not self.is_steady:
            return to.Outlook(to.Place.CALL)
        free, beside = self.waiting()
        if any(one.stage is not None and one.stage.begun for one in free):
            return to.Outlook(to.Place.CALL)
        if free:
            return to.Outlook(to.Place.CALL, min(map(self._at_once_s, free)))
        return to.Outlook(to.Place.BESIDE if beside else None)

    def gain_left(self) -> float:
        """Return the ratio of the best candidate's seconds to those of the most promising other; 1 where none is."""
        return max((self.promised(one) for waiting in self.waiting() for one in waiting), default=1.0)

    def story(self) -> str:
        """Return what has happened so far, one line for each event of note."""
        return "\n".join(self._story)

    @property
    def passes(self) -> int:
        """How many of the next calls tell nothing, so that the best may run them without `Next` and `Ran`."""
        if not (self.settled and self.idle):
            return 0
        return min(MOST_PASSED, self._watch.wait)

    def validate(self) -> None:
        """Raise AssertionError where what is known contradicts itself; tests call it after each event."""
        best = self.standings[self.best]
        assert best.status is not Status.OUT, f"the best, {self.best}, is out"
        assert self.standings[self.baseline].status is not Status.OUT
        assert self.comparison is None or not self.settled, "compared while settled"
        if self.comparison is not None:
            assert self.best in (self.comparison.base, self.comparison.new)
            assert self.standings[self.comparison.other].status is not Status.OUT
        for one in self.standings.values():
            assert (one.stage is None) or one.status in (Status.STAGED, Status.OUT)

    # what comes next

    def _next(self, event: to.Next) -> to.Instructions:
        self.held_back = False
        if self.comparison is not None:
            return self._next_compared(self.comparison, event)
        standing = self._next_candidate(event)
        if standing is None:
            settle = () if event.disturbed else self._settle_if_known()
            return *settle, *self._choose(to.Run(self.best), counts=not event.disturbed)
        before: to.Instructions = (to.Unsettle(),) if self.settled else ()
        self.settled = False
        if standing.stage is not None and standing.stage.place is to.Place.CALL:
            return *before, *self._choose(to.RunStage(standing.key, anew=not standing.stage.begun), counts=True)
        if standing.open:
            self._compare(standing)
            return *before, *self._next(event)
        return *before, to.Prepare(standing.key)

    def _next_compared(self, comparison: Turns, event: to.Next) -> to.Instructions:
        guard, cost_s = comparison.guard, self._pair_s(comparison)
        self.held_back = (cost_s > 0 and event.left_s < 0) if guard.begun else cost_s > max(event.left_s, 0.0)
        if not (self.held_back or event.disturbed):
            return self._choose(comparison.next(), counts=True)
        if guard.begun:
            guard.break_off()
        return self._choose(to.Run(self.best), counts=False)

    def _next_candidate(self, event: to.Next) -> Standing | None:
        """What is prepared or compared next, if time may be spent on it; None: the best runs."""
        if event.disturbed or (self.best == self.baseline and not self.is_steady):
            return None
        going = next((one for one in self.standings.values() if one.stage is not None and one.stage.begun), None)
        if going is not None and going.stage is not None:
            if event.left_s >= 0:
                return going
            lost_s, going.lost_s = going.lost_s, 0.0  # the next attempt must be allowed as much more
            going.stage = replace(going.stage, begun=False, cost_s=going.stage.cost_s + lost_s)
        free, beside = self.waiting()
        affordable = [one for one in free if self._at_once_s(one) <= max(event.left_s, 0.0)]
        self.held_back = bool(free) and not affordable
        chosen = max(affordable, key=lambda one: (one.status is not Status.OFFERED, self.value(one)), default=None)
        if chosen is None or event.left_s < math.inf:
            return chosen
        # The caller waits: what is at work beside the calls and gains more for its time comes first.
        return None if any(self.value(one) > self.value(chosen) for one in beside) else chosen

    def _at_once_s(self, standing: Standing) -> float:
        """Seconds that have to be there for the next part of preparing or comparing a candidate."""
        begins_small = standing.offered.bit_by_bit and standing.status is Status.OFFERED
        return 0.0 if begins_small else self.cost_s(standing)

    def _pair_s(self, comparison: Turns) -> float:
        """Seconds that the next pair of a comparison is expected to cost calls."""
        cost_s = comparison.cost_s
        return self.comparing_s(self.standings[comparison.other]) / PAIRS_AT_LEAST if cost_s is None else cost_s

    def _choose(self, what: to.Run | to.RunStage, *, counts: bool) -> to.Instructions:
        self.chosen, self._counts = what, counts
        return (what,)

    def _settle_if_known(self) -> to.Instructions:
        """Settle where it was found out what is the fastest so far, or nothing else will run."""
        if self.settled or not (self._compared or self.idle):
            return ()
        self.settled = True
        self._say(f"{self.best} runs")
        self._watch.clear()
        others = (one for one in self.standings.values() if one.key != self.best and not self.is_open(one))
        return *(release for one in others for release in self._released(one)), to.Settle(self.best)

    # comparisons

    def _compare(self, standing: Standing) -> None:
        self._say(f"{self.best} and {standing.key} are compared")
        standing.beside = False
        self.comparison = Turns(self.best, standing.key, baseline=self.baseline)

    def _judge(self, comparison: Turns, verdict: Verdict) -> to.Instructions:
        self.comparison, self._compared = None, True
        verdict = replace(verdict, over=str(comparison.base))
        new, base = self.standings[comparison.new], self.standings[comparison.base]
        self._say(f"{new.key} {verdict.against(str(base.key))}")
        base_s, new_s = comparison.guard.step_s("default"), comparison.guard.step_s("plan")
        new.step_s, new.first_s, base.step_s = new_s or new.step_s, 0.0, base_s or base.step_s
        if base.gain is not None:
            new.gain = base.gain * verdict.gain
        winner, loser = (new, base) if verdict.kept == "plan" else (base, new)
        loser.losses += 1
        winner.status, loser.status = Status.READY, Status.LOST
        done: to.Instructions = (to.Compared(new.key, verdict), *self._released(loser))
        if winner is new and new.key != self.best:
            self._become(new.key)
            done = done if new_s is None else (*done, to.Keep(new.key, new_s))
        if loser is new and new.offered.earlier:
            return *done, *self._without(new.key, "it is not faster")
        if loser.key == self.best:
            self._back_to_baseline()
        return done

    def _released(self, standing: Standing) -> to.Instructions:
        """Have a candidate prepared once more before it runs again."""
        if standing.key == self.baseline or not standing.open:
            return ()
        standing.open = False
        return (to.Release(standing.key),)

    def _become(self, key: to.Key) -> None:
        self.become(key)
        if self.standings[key].losses:  # of two that win in turn each is watched for longer
            self._watch.later()
        else:
            self._watch = Watch()

    def _back_to_baseline(self) -> None:
        """Run the baseline, and compare the second best with it."""
        second = self.second()
        self._become(self.baseline)
        if second is not None:
            second.status, second.losses = Status.READY, 0

    def _without(self, key: to.Key, reason: str, *, differs: bool = False) -> to.Instructions:
        """Never run a candidate again."""
        standing = self._standing(key, "left out", but=(self.baseline,))
        self._say(f"{key} never runs again: {reason}")
        standing.status, standing.stage, standing.open, standing.reason = Status.OUT, None, False, reason
        if self.comparison is not None and key in (self.comparison.best, self.comparison.other):
            self.comparison = None
        drop = to.Drop(key, reason, differs, standing.offered.earlier)
        if key != self.best:
            return (drop,)
        unsettled: to.Instructions = (to.Unsettle(),) if self.settled else ()
        self.settled = False
        self._back_to_baseline()
        return *unsettled, drop

    # calls that have run

    def _ran(self, event: to.Ran) -> to.Instructions:
        what, counts, best_s = self.chosen, self._counts, self.best_s
        if what is None:
            raise self._illegal("a call ran before it came")
        self.calls += 1
        lost_s = 0.0 if best_s is None else event.call_s - best_s
        if isinstance(what, to.RunStage):
            self.standings[what.key].lost_s += lost_s
            return ()
        if event.alone:  # what computed beside calls, and made some of them lose, is over
            for one in self.standings.values():
                if one.beside and one.status is Status.LOST and one.losses < MOST_BESIDE and one.key != self.baseline:
                    one.status = Status.READY
        counts = counts and event.alone
        self.note(what.key, event, counts=counts)
        if self.comparison is not None:
            return self._observe(self.comparison, event) if self._counts else ()
        return self._look(event) if self.settled and counts and what.key == self.best else ()

    def _observe(self, comparison: Turns, event: to.Ran) -> to.Instructions:
        standing, guard = self.standings[comparison.other], comparison.guard
        guard.observe(started_s=event.started_s, seconds=event.seconds)
        standing.beside = standing.beside or not event.alone
        return () if guard.verdict is None else self._judge(comparison, guard.verdict)

    def _look(self, event: to.Ran) -> to.Instructions:
        """Look at the calls of what was kept, which runs alone; have it compared once more where they raise a doubt."""
        if not event.all_cores:
            self._watch.clear()
            self._watch.waived = True
            return ()
        alone_s = self._watch.observe(event.seconds)
        if alone_s is None:
            return ()
        best = self.standings[self.best]
        broken = best.offered.earlier and alone_s > AGAIN * (best.step_s or math.inf)
        other = self.standings[self.baseline] if broken else self.second(under_s=alone_s)
        if other is not None:
            other.status = Status.READY
            self._say(f"{best.key} is doubted: a call takes {alone_s:.3g} s alone, {other.step_s} s by {other.key}")
        kept, self._watch.looked, best.step_s = self._watch.looked or best.key == self.baseline, True, alone_s
        return () if kept else (to.Keep(best.key, alone_s),)

    # events of candidates

    def _offered(self, event: to.Offered) -> to.Instructions:
        found = self.standings.get(event.key)
        if found is not None and found.status is not Status.OUT:
            raise self._illegal(f"{event.key} is offered twice")
        status = Status.READY if event.ready else Status.OFFERED
        self.standings[event.key] = Standing(event, status, open=event.ready)
        return ()

    def _resumed(self, event: to.Resumed) -> to.Instructions:
        if self._compared or self.comparison is not None or event.key in self.standings:
            raise self._illegal(f"{event.key} is resumed too late")
        gain, baseline = event.eager_s and event.eager_s / max(1e-9, event.step_s), self.standings[self.baseline]
        baseline.status, baseline.step_s = Status.LOST, event.eager_s
        offered = to.Offered(event.key, ready=True, earlier=True)
        self.standings[event.key] = Standing(offered, Status.READY, step_s=event.step_s, gain=gain, open=True)
        self._say(f"{event.key} was found by an earlier process; a call took {event.step_s:.3g} s")
        self._become(event.key)
        self._watch.wait = MOST_EAGER  # the first calls of a process are slow ones
        self.settled = self._compared = True
        return (to.Settle(event.key),)

    def _standing(self, key: to.Key, event: str, *, but: Sequence[to.Key] = ()) -> Standing:
        found = self.standings.get(key)
        if found is None or found.status is Status.OUT or key in but:
            raise self._illegal(f"{key} is {event}, and {'cannot be' if found else 'was not offered'}")
        return found

    def _say(self, line: str) -> None:
        self._story.append(f"call {self.calls}: {line}")
        self._told(line)

    def _illegal(self, what: str) -> Illegal:
        return Illegal(f"illegal: {what}; what happened before:\n{self.story() or '  nothing'}")


def replay(events: Iterable[to.Event], baseline: to.Key, *, baseline_s: Sequence[float] = ()) -> Tournament:
    """Return a tournament in the state to which these events, the log of another one, lead."""
    found = Tournament(baseline, baseline_s=baseline_s)
    for event in events:
        found.handle(event)
        found.validate()
    return found
