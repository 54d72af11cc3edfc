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
with ever longer waits: it has to be as fast alone as its comparison has promised, and nothing else faster.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median, median_low

from threadcast.core.gains import PAIRS_AT_LEAST
from threadcast.runtime.tuner import events as to
from threadcast.runtime.tuner.entrant import LEAST_LOOK, MOST_EAGER, Entrant, Status, Turns, Watch, are_steady
from threadcast.runtime.tuner.guard import CLEAR, Verdict

WORTH = 1.02
"""Ratio of the best candidate's seconds to another's under which it is not worth comparing."""
AGAIN = 1.25
"""Ratio of the best candidate's seconds to those of one that has lost, from which on that is compared once more."""
BROKEN = 1.2
"""Ratio of the seconds of calls alone to those that a comparison has promised, above which it is doubted: medians of so
few calls differ by 5 to 10 % between two times of the same process."""
UNKNOWN = 0.5
"""Share by which a candidate is taken to be slower than the best where nothing is known of it."""
MOST_DOUBTS = 3
"""Most comparisons of one candidate because another may be as fast; one that has become slower is always compared."""
MOST_PASSED = 20
"""Most calls in a row of what was kept that need not be timed. A convention."""
_RECENT, _OF_BASELINE = 15, 25
_STORY, _LOG = 200, 5_000


class Illegal(RuntimeError):
    """An event that cannot come now: a bug in threadcast. Its text ends with the tournament's story."""


class Tournament:
    """Which of several candidates runs a call; `baseline` is what runs it without any.

    `baseline_s` are seconds of calls before, which the baseline ran. `told` is called with each line of the story.
    """

    def __init__(
        self, baseline: to.Key, *, baseline_s: Sequence[float] = (), told: Callable[[str], None] = lambda _: None
    ) -> None:
        self.baseline = self.best = baseline
        self.entrants: dict[to.Key, Entrant] = {
            baseline: Entrant(to.Offered(baseline, 1.0, 1.0, ready=True), Status.READY, gain=1.0, shown=1.0, open=True)
        }
        self.comparison: Turns | None = None
        self.settled = False
        """Whether what was found to be the fastest runs, and nothing else is being prepared or compared in calls."""
        self.over: str | None = None
        """Why the baseline runs for good; None where it does not."""
        self.held_back = False
        """Whether the best ran the last call only because no time may be spent on what comes next."""
        self.calls = 0
        self.log: list[to.Event] = []
        """The first events, which take 0.6 MB at most: with them it can be replayed."""
        self._story: deque[str] = deque(maxlen=_STORY)
        self._told = told
        self._baseline_s: deque[float] = deque(baseline_s[1:], maxlen=_OF_BASELINE)
        self._baseline_calls, self._steady = len(baseline_s), False
        self._best_s: deque[float] = deque(maxlen=_RECENT)
        self._watch = Watch()
        self._compared = False
        self._doubtful: to.Key | None = None
        """What the best has to be compared with in any case, as it is doubted."""
        self._left_s, self._quiet = 0.0, True
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
            case to.Expected():
                entrant = self._entrant(event.key, "expected")
                entrant.offered = replace(entrant.offered, gain=event.gain, most=event.most)
            case to.Staged():
                entrant = self._entrant(event.key, "staged", but=(self.best, self.challenger))
                if entrant.status is Status.LOST:  # what it took says little of what it will take
                    entrant.step_s = None
                entrant.status, entrant.stage = Status.STAGED, event
                if not event.begun:
                    entrant.forget_losses()
            case to.Ready():
                entrant = self._entrant(event.key, "ready")
                entrant.status, entrant.stage, entrant.open = Status.READY, None, True
                entrant.step_s = entrant.step_s if event.step_s is None else event.step_s
                entrant.forget_losses()
            case to.LeftOut():
                return self._without(event.key, event.reason, differs=event.differs)
            case to.Resumed():
                return self._resumed(event)
            case to.GaveUp():
                return self._give_up(event.reason)
        return ()

    # what is known

    @property
    def is_steady(self) -> bool:
        """Whether it is known how long a call of the baseline takes; true once it was true."""
        self._steady = self._steady or are_steady(list(self._baseline_s))
        return self._steady

    @property
    def baseline_s(self) -> float | None:
        """Seconds of a call of the baseline, the median of recent ones; None until they are steady."""
        return median_low(self._baseline_s) if self._baseline_s and self.is_steady else None

    @property
    def eager_s(self) -> float | None:
        """Seconds of a call of the baseline, as comparisons of the best and its own calls show; None: not known."""
        found = [one for one in (self.entrants[self.best].eager_s, self.baseline_s) if one is not None]
        return sum(found) / len(found) if found else None

    @property
    def best_s(self) -> float | None:
        """Seconds of a call of the best candidate, of some recent ones; None where they are not known."""
        if self.best == self.baseline:
            return self.baseline_s
        known_s = self.entrants[self.best].step_s
        if len(self._best_s) < LEAST_LOOK and known_s is not None:
            return known_s
        return median(self._best_s) if self._best_s else None

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
            one.stage is not None and one.stage.begun for one in self.entrants.values()
        )

    @property
    def confirmed(self) -> bool:
        """Whether calls of what was kept have shown how fast it is alone."""
        return self._watch.looked or self.best == self.baseline

    @property
    def idle(self) -> bool:
        """Whether nothing is left to prepare or to compare, as far as is known now."""
        return self.over is not None or (self.comparison is None and not any(self._waiting()))

    def waits(self, key: to.Key) -> bool:
        """Return whether a candidate is still to be prepared or compared, and may be worth it."""
        return key == self.challenger or (key in self.entrants and self._is_open(self.entrants[key]))

    def comes_first(self, key: to.Key) -> bool:
        """Return whether a candidate is at work that may be worth it, and none that promises more waits for seconds."""
        entrant = self.entrants.get(key)
        if entrant is None or entrant.status is not Status.STAGED or not self._is_open(entrant):
            return False
        return all(self._value(one) <= self._value(entrant) for one in self._waiting()[0])

    @property
    def outlook(self) -> to.Outlook:
        """What is learned next, for one who decides whether calls come here at all."""
        if self.over is not None:
            return to.Outlook(None)
        if self.comparison is not None:
            return to.Outlook(to.Place.CALL, 0.0 if self.comparison.guard.begun else self._pair_s(self.comparison))
        if self._doubtful is not None or (self.best == self.baseline and not self.is_steady):
            return to.Outlook(to.Place.CALL)
        free, beside = self._waiting()
        if any(one.stage is not None and one.stage.begun for one in free):
            return to.Outlook(to.Place.CALL)
        if free:
            return to.Outlook(to.Place.CALL, min(map(self._at_once_s, free)))
        return to.Outlook(to.Place.BESIDE if beside else None)

    def gain_left(self) -> float:
        """Return the ratio of the best candidate's seconds to those of the most promising other; 1 where none is."""
        return max((self._promised(one) for waiting in self._waiting() for one in waiting), default=1.0)

    def story(self) -> str:
        """Return what has happened so far, one line for each event of note."""
        return "\n".join(self._story)

    @property
    def passes(self) -> int:
        """How many of the next calls tell nothing, so that the best may run them without `Next` and `Ran`."""
        if not (self.settled and self.idle):
            return 0
        return MOST_PASSED if self.best == self.baseline else min(MOST_PASSED, self._watch.wait)

    def eager_of(self, call: to.Ran, chosen: to.Run | to.RunStage) -> float | None:
        """Return the seconds that a call which has run would have taken by the baseline; None: not known.

        A call of the best takes longer where the machine is slower, and so would the baseline's; but one slow call
        gains nothing. Where nothing is known of the baseline, it is as fast as the best. Other calls gain no more than
        those of the best: a baseline that was timed while the machine was slow says nothing of later calls.
        """
        best_s = self.best_s
        if not (isinstance(chosen, to.Run) and chosen.key in (self.baseline, self.best) and call.alone):
            eager_s = self.eager_s or best_s
            shown_s = 0.0 if best_s is None or self.best == self.baseline else best_s * self.gain_now
            return None if eager_s is None else min(eager_s, max(call.seconds, shown_s))
        if chosen.key == self.baseline or best_s is None:
            return call.seconds
        return call.seconds + (self.gain_now - 1) * min(call.seconds, best_s)

    @property
    def gain_now(self) -> float:
        """Ratio of the baseline's seconds to the best's of recent calls, at most what comparisons have shown.

        1 where the best seems slower: what it takes longer is no cost of learning.
        """
        best_s, eager_s = self.best_s, self.eager_s
        if self.best == self.baseline or best_s is None or eager_s is None:
            return 1.0
        return max(1.0, min(eager_s / best_s, self.entrants[self.best].shown or math.inf))

    def validate(self) -> None:
        """Raise AssertionError where what is known contradicts itself; tests call it after each event."""
        best = self.entrants[self.best]
        assert best.status is not Status.OUT, f"the best, {self.best}, is out"
        assert self.entrants[self.baseline].status is not Status.OUT
        assert self.comparison is None or not self.settled, "compared while settled"
        if self.comparison is not None:
            assert self.best in (self.comparison.base, self.comparison.new)
            assert self.entrants[self.comparison.other].status is not Status.OUT
        if self.over is not None:
            assert self.best == self.baseline
            assert self.comparison is None
        for one in self.entrants.values():
            assert (one.stage is None) or one.status in (Status.STAGED, Status.OUT)
            assert one.lost_s == 0 or one.stage is not None or self.comparison is not None

    # what comes next

    def _next(self, event: to.Next) -> to.Instructions:
        self.held_back, self._left_s = False, event.left_s
        if self.over is not None:
            return self._choose(to.Run(self.baseline), counts=False)
        if self.comparison is not None:
            return self._next_compared(self.comparison, event)
        entrant = self._next_entrant(event)
        if entrant is None:
            settle = () if event.disturbed else self._settle_if_known()
            return *settle, *self._choose(to.Run(self.best), counts=not event.disturbed)
        before: to.Instructions = (to.Unsettle(),) if self.settled else ()
        self.settled = False
        if entrant.stage is not None and entrant.stage.place is to.Place.CALL:
            return *before, *self._choose(to.RunStage(entrant.key, anew=not entrant.stage.begun), counts=True)
        if entrant.open:
            self._compare(entrant)
            return *before, *self._next(event)
        return *before, to.Prepare(entrant.key)

    def _next_compared(self, comparison: Turns, event: to.Next) -> to.Instructions:
        guard, entrant, cost_s = comparison.guard, self.entrants[comparison.other], comparison.cost_s
        if guard.begun:
            costs = entrant.lost_s > (BROKEN - 1) * (self.best_s or 0.0) if cost_s is None else cost_s > 0
            self.held_back = costs and event.left_s < 0
        else:
            self.held_back = cost_s != 0 and self._pair_s(comparison) > max(event.left_s, 0.0)
        if not (self.held_back or event.disturbed):
            return self._choose(comparison.next(), counts=True)
        run = comparison.best_instead()
        if guard.begun:
            guard.break_off()
            entrant.break_off(too_dear=self.held_back)
        return self._choose(run, counts=False)

    def _next_entrant(self, event: to.Next) -> Entrant | None:
        """What is prepared or compared next, if time may be spent on it; None: the best runs."""
        if event.disturbed or (self.best == self.baseline and not self.is_steady):
            return None
        if self._doubtful is not None:
            return self.entrants[self._doubtful]
        going = next((one for one in self.entrants.values() if one.stage is not None and one.stage.begun), None)
        if going is not None and going.stage is not None:
            if event.left_s >= 0:
                return going
            going.break_off(too_dear=True)
            going.stage = replace(going.stage, begun=False)
        free, beside = self._waiting()
        affordable = [one for one in free if self._at_once_s(one) <= max(event.left_s, 0.0)]
        self.held_back = bool(free) and not affordable
        chosen = max(affordable, key=lambda one: (one.status is not Status.OFFERED, self._value(one)), default=None)
        if chosen is None or event.left_s < math.inf:
            return chosen
        # The caller waits: what is at work beside the calls and gains more for its time comes first.
        return None if any(self._value(one) > self._value(chosen) for one in beside) else chosen

    def _waiting(self) -> tuple[list[Entrant], list[Entrant]]:
        """What may be worth preparing or comparing now, and what may be but is at work beside calls."""
        found: tuple[list[Entrant], list[Entrant]] = [], []
        for one in filter(self._is_open, self.entrants.values()):
            found[one.stage is not None and one.stage.place is to.Place.BESIDE].append(one)
        return found

    def _is_open(self, entrant: Entrant) -> bool:
        """Whether a candidate is still to be prepared or compared, and may be worth it."""
        if entrant.key == self.best or entrant.status is Status.OUT:
            return False
        if entrant.status is Status.LOST:
            again = entrant.beside and self._quiet and entrant.losses < MOST_DOUBTS and entrant.key != self.baseline
            return again or self._is_faster_now(entrant)
        if entrant.key == self.baseline:
            return False
        return self._promised(entrant, most=True) >= WORTH or entrant.offered.earlier

    def _is_faster_now(self, entrant: Entrant) -> bool:
        """Whether the best has become so slow that one which has lost may be faster."""
        step_s = self._step_s(entrant)
        if step_s is None or self.best_s is None or entrant.losses > MOST_DOUBTS:
            return False
        return self.best_s > AGAIN**entrant.losses * step_s

    def _step_s(self, entrant: Entrant) -> float | None:
        return self.baseline_s if entrant.key == self.baseline else entrant.step_s

    def _promised(self, entrant: Entrant, *, most: bool = False) -> float:
        """Ratio of the best's seconds to those that a candidate is expected to take; `most`: if all goes well."""
        best_s, baseline_s = self.best_s, self.baseline_s
        if entrant.step_s is not None and best_s is not None:
            return best_s / entrant.step_s * (AGAIN if most else 1.0)
        ahead = 1.0 if best_s is None or baseline_s is None else baseline_s / best_s
        return (entrant.offered.most if most else entrant.offered.gain) / ahead

    def _cost_s(self, entrant: Entrant) -> float:
        """Seconds that the next part of preparing or comparing a candidate is expected to cost calls."""
        if entrant.stage is not None and entrant.stage.place is not to.Place.BESIDE:
            return entrant.stage.cost_s
        is_new = entrant.status in (Status.OFFERED, Status.STAGED)
        return entrant.offered.cost_s if is_new else self._comparing_s(entrant)

    def _at_once_s(self, entrant: Entrant) -> float:
        """Seconds that have to be there for the next part of preparing or comparing a candidate."""
        begins_small = entrant.offered.bit_by_bit and entrant.status is Status.OFFERED
        return entrant.beyond_s + (0.0 if begins_small else self._cost_s(entrant))

    def _comparing_s(self, entrant: Entrant) -> float:
        best_s, step_s = self.best_s or 0.0, self._step_s(entrant)
        step_s = best_s * (1 + UNKNOWN) if step_s is None else step_s
        return 2 * PAIRS_AT_LEAST * max(0.0, step_s - best_s)

    def _pair_s(self, comparison: Turns) -> float:
        """Seconds that the next pair of a comparison is expected to cost calls."""
        entrant, cost_s = self.entrants[comparison.other], comparison.cost_s
        return entrant.beyond_s + (self._comparing_s(entrant) / PAIRS_AT_LEAST if cost_s is None else cost_s)

    def _value(self, entrant: Entrant) -> float:
        """What a candidate is expected to gain for each second that it costs; what is being prepared goes on first."""
        gain = max(self._promised(entrant) - 1.0, 0.01 * (self._promised(entrant, most=True) - 1.0))
        return gain / max(1e-3, self._cost_s(entrant))

    def _choose(self, what: to.Run | to.RunStage, *, counts: bool) -> to.Instructions:
        self.chosen, self._counts = what, counts
        return (what,)

    def _settle_if_known(self) -> to.Instructions:
        """Settle where it was found out what is the fastest so far, or nothing else will run."""
        if self.settled or not (self._compared or self.idle):
            return ()
        reasons = [one.reason for one in self.entrants.values() if one.status is Status.OUT]
        if self.idle and reasons and len(reasons) == len(self.entrants) - 1:
            return self._give_up(reasons[0])
        self.settled = True
        self._say(f"{self.best} runs")
        self._watch.clear()
        others = (one for one in self.entrants.values() if one.key != self.best and not self._is_open(one))
        return *(release for one in others for release in self._released(one)), to.Settle(self.best)

    # comparisons

    def _compare(self, entrant: Entrant) -> None:
        alone = self._doubtful is not None or entrant.offered.alone or self.entrants[self.best].offered.alone
        self._doubtful = None
        self._say(f"{self.best} and {entrant.key} are compared")
        entrant.beside = False
        self.comparison = Turns(self.best, entrant.key, baseline=self.baseline, alone=alone)

    def _judge(self, comparison: Turns, verdict: Verdict) -> to.Instructions:
        self.comparison, self._compared = None, True
        verdict = replace(verdict, over=str(comparison.base))
        new, base = self.entrants[comparison.new], self.entrants[comparison.base]
        self._say(f"{new.key} {verdict.against(str(base.key))}")
        base_s, new_s = comparison.guard.step_s("default"), comparison.guard.step_s("plan")
        new.step_s = new_s or new.step_s
        if base.key != self.baseline:
            base.step_s = base_s or base.step_s
        if base.gain is not None:
            new.gain = base.gain * verdict.gain
        if base.shown is not None:
            new.shown = base.shown * verdict.counts_as
        for one in (new, base):
            if one.gain is not None and one.step_s is not None and one.key != self.baseline:
                one.eager_s = one.gain * one.step_s
        winner, loser = (new, base) if verdict.kept == "plan" else (base, new)
        loser.losses += 1
        winner.status, loser.status = Status.READY, Status.LOST
        for one in (winner, loser):
            one.forget_losses()
        done: to.Instructions = (to.Compared(new.key, verdict), *self._released(loser))
        if winner is new and new.key != self.best:
            self._become(new.key)
            done = done if new_s is None else (*done, to.Keep(new.key, new_s))
        if loser is new and new.offered.earlier:
            return *done, *self._without(new.key, "it is not faster")
        if loser.key == self.best:
            self._back_to_baseline()
        return done

    def _released(self, entrant: Entrant) -> to.Instructions:
        """Have a candidate prepared once more before it runs again."""
        if entrant.key == self.baseline or not entrant.open:
            return ()
        entrant.open = False
        return (to.Release(entrant.key),)

    def _become(self, key: to.Key) -> None:
        self.best = key
        self._best_s.clear()
        self._watch = Watch()

    def _back_to_baseline(self) -> None:
        """Run the baseline, and compare the second best with it."""
        second = self._second()
        self._become(self.baseline)
        if second is not None:
            second.status, second.losses = Status.READY, 0

    def _second(self) -> Entrant | None:
        """The next best that can run; None where that is the baseline."""
        others = (one for one in self.entrants.values() if one.key not in (self.baseline, self.best))
        lost = (one for one in others if one.status is Status.LOST)
        return min(lost, key=lambda one: one.step_s or math.inf, default=None)

    def _without(self, key: to.Key, reason: str, *, differs: bool = False) -> to.Instructions:
        """Never run a candidate again."""
        entrant = self._entrant(key, "left out", but=(self.baseline,))
        self._say(f"{key} never runs again: {reason}")
        entrant.status, entrant.stage, entrant.open, entrant.reason = Status.OUT, None, False, reason
        entrant.forget_losses()
        if self._doubtful == key:
            self._doubtful = None
        if self.comparison is not None and key in (self.comparison.best, self.comparison.other):
            self.entrants[self.comparison.other].forget_losses()
            self.comparison = None
        drop = to.Drop(key, reason, differs, entrant.offered.earlier)
        if key != self.best:
            return (drop,)
        unsettled: to.Instructions = (to.Unsettle(),) if self.settled else ()
        self.settled, self._doubtful = False, None
        self._back_to_baseline()
        return *unsettled, drop

    # calls that have run

    def _ran(self, event: to.Ran) -> to.Instructions:
        what, counts, best_s = self.chosen, self._counts, self.best_s
        if what is None:
            raise self._illegal("a call ran before it came")
        self.calls, self._quiet = self.calls + 1, event.alone
        lost_s = 0.0 if best_s is None else event.call_s - best_s
        if isinstance(what, to.RunStage):
            if self.entrants[what.key].stage is not None:
                self.entrants[what.key].lost_s += lost_s
            return ()
        known, counts = self._steady and len(self._baseline_s) > 0, counts and event.alone
        if what.key == self.baseline:
            self._baseline_calls += 1
            if (counts or not known) and self._baseline_calls > 1:  # the first call of all is a slow one
                self._baseline_s.append(event.seconds)
        elif what.key == self.best and counts and event.all_cores:
            self._best_s.append(event.seconds)
        if self.comparison is not None:
            return self._observe(self.comparison, event, lost_s) if self._counts else ()
        return self._look(event) if self.settled and counts and what.key == self.best != self.baseline else ()

    def _observe(self, comparison: Turns, event: to.Ran, lost_s: float) -> to.Instructions:
        entrant, guard = self.entrants[comparison.other], comparison.guard
        guard.observe(started_s=event.started_s, seconds=event.seconds)
        entrant.lost_s, entrant.beside = entrant.lost_s + lost_s, entrant.beside or not event.alone
        if not guard.begun:
            entrant.forget_losses()
        return () if guard.verdict is None else self._judge(comparison, guard.verdict)

    def _look(self, event: to.Ran) -> to.Instructions:
        """Look at the calls of what was kept, which runs alone; have it compared once more where they raise a doubt."""
        if not event.all_cores:
            self._watch.clear()
            self._watch.looked = True
            return ()
        alone_s = self._watch.observe(event.seconds)
        if alone_s is None:
            return ()
        entrant = self.entrants[self.best]
        self._watch.looked = True
        doubt = self._doubt(entrant, alone_s)
        if doubt is not None:
            other, reason = doubt
            if self._comparing_s(self.entrants[other]) > max(self._left_s, 0.0):
                self._watch.soon()
                return ()
            entrant.doubts, self.settled, self._doubtful = entrant.doubts + 1, False, other
            self._say(f"{self.best} is doubted: {reason}")
            return (to.Unsettle(),)
        if self._watch.kept:
            return ()
        self._watch.kept, entrant.step_s = True, alone_s
        return (to.Keep(self.best, alone_s),)

    def _doubt(self, entrant: Entrant, alone_s: float) -> tuple[to.Key, str] | None:
        """What may be faster than what was kept, and why; None: nothing."""
        took, baseline_s, promised_s = f"a call takes {alone_s:.3g} s alone", self.baseline_s, entrant.step_s
        if baseline_s is not None and alone_s * CLEAR > baseline_s and entrant.doubts < MOST_DOUBTS:
            return self.baseline, f"{took}, one by {self.baseline} {baseline_s:.3g} s"
        if promised_s is not None and alone_s > BROKEN * promised_s:
            second = self._second()
            other = self.baseline if second is None or entrant.offered.earlier else second.key
            return other, f"{took}, and took {promised_s:.3g} s before"
        return None

    # events of candidates

    def _offered(self, event: to.Offered) -> to.Instructions:
        found = self.entrants.get(event.key)
        if found is not None and found.status is not Status.OUT:
            raise self._illegal(f"{event.key} is offered twice")
        status = Status.READY if event.ready else Status.OFFERED
        self.entrants[event.key] = Entrant(event, status, open=event.ready)
        return ()

    def _resumed(self, event: to.Resumed) -> to.Instructions:
        if self._compared or self.comparison is not None or event.key in self.entrants:
            raise self._illegal(f"{event.key} is resumed too late")
        eager_s, gain = event.eager_s, event.eager_s and event.eager_s / max(1e-9, event.step_s)
        offered = to.Offered(event.key, ready=True, alone=event.alone, earlier=True)
        self.entrants[event.key] = Entrant(
            offered, Status.READY, step_s=event.step_s, gain=gain, shown=gain, eager_s=eager_s, open=True
        )
        self._say(f"{event.key} was found by an earlier process; a call took {event.step_s:.3g} s")
        self._become(event.key)
        self._watch.wait = MOST_EAGER  # the first calls of a process are slow ones
        self.settled = self._compared = True
        return (to.Settle(event.key),)

    def _give_up(self, reason: str) -> to.Instructions:
        if self.over is not None:
            return ()
        self._say(f"{self.baseline} runs for good: {reason}")
        for one in self.entrants.values():
            one.forget_losses()
        self.over, self.settled, self.comparison, self._doubtful = reason, True, None, None
        self._become(self.baseline)
        return (to.GiveUp(reason),)

    def _entrant(self, key: to.Key, event: str, *, but: Sequence[to.Key] = ()) -> Entrant:
        found = self.entrants.get(key)
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
