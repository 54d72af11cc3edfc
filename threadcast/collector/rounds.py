"""Rounds of a campaign that follows forecasts: ops are measured next where the expected regret of a step is largest."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from threadcast.collector import budget
from threadcast.collector.proposers import Choice, LearningProposer
from threadcast.core import Case, Machine, Measurement, Op

PART = 1 / 3
"""Part of the ops that need a sample that one round measures, so that what they show is learned before the others'
turn."""

LEARNING_SHARE, LEAST_S = 0.1, 2.0
"""Most of a campaign's time that goes into tuning the proposer, but for these seconds, which it may take anyway."""

GROWTH = 1.2
"""The proposer is tuned again when there are so many times as many measurements."""


@dataclass(frozen=True, slots=True)
class ExpectedRegret:
    """What the choices of cases are expected to cost, as a share of the time with the best cases.

    `step`: of the whole step, each op weighted by its runs and time; `mean`: the plain mean over the distinct ops.
    """

    step: float
    mean: float

    @property
    def larger(self) -> float:
        """The larger of the two."""
        return max(self.step, self.mean)


class RegretRounds:
    """Chooses what is measured next, by a proposer that says what its choices may cost.

    Every op is measured once. Then the ops with the largest expected regret times weight have their turn, until the
    expected regret of the step and the mean over ops are both at most `enough`, or the proposer asks for nothing more.
    An op whose own expected regret is at most `enough` is not measured again. Before each round the proposer learns
    what was measured; it is tuned as long as that takes at most `LEARNING_SHARE` of the time since the start. Where
    forecasting takes longer than that, rounds are larger.
    """

    def __init__(
        self, proposer: LearningProposer, *, enough: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._proposer, self._enough, self._clock = proposer, enough, clock
        self._started_s = clock()
        self._spent_s = self._tuned_s = self._last_s = 0.0
        self._tuned_on = 0
        self.choices: dict[str, Choice] = {}
        """By op key, as forecast before the last round."""
        self.expected = ExpectedRegret(math.inf, math.inf)
        self.wanting: tuple[str, ...] = ()
        """Keys of the ops that the last round and the next ones measure, as far as is known now."""

    def next(
        self, ops: Mapping[str, Op], runs: Mapping[str, int], observed: Mapping[str, Sequence[Measurement]],
        machine: Machine,
    ) -> dict[str, Case]:  # fmt: skip
        """The case to measure next for some of the ops, by key; empty at the end.

        `runs` are those of each op in a step.
        """
        if not ops:
            return {}
        began_s = self._clock()
        self._learn([found for key in ops for found in observed[key]])
        self.choices = self._choices(ops, observed, machine)
        self._spent_s += self._clock() - began_s
        weights = {key: runs[key] * choice.seconds for key, choice in self.choices.items()}
        self.expected = _expected(self.choices, weights)
        unmeasured = [key for key in ops if not observed[key]]
        if self.expected.larger <= self._enough and not unmeasured:
            self.wanting = ()
            return {}
        shares = dict(zip(weights, budget.shares(list(weights.values())), strict=True))
        wanting = {
            key: choice.next_case
            for key, choice in self.choices.items()
            if choice.next_case is not None and (not observed[key] or choice.expected_regret > self._enough)
        }
        order = sorted(wanting, key=lambda key: (bool(observed[key]), -self.choices[key].expected_regret * shares[key]))
        self.wanting = tuple(order)
        part = 1.0 if self._spent_s > LEARNING_SHARE * self._elapsed_s() else PART
        return {key: wanting[key] for key in order[: math.ceil(part * len(order))]}

    def learn_anew(self) -> None:
        """Tune the proposer before the next round, if the time suffices."""
        self._tuned_on = 0

    def _choices(
        self, ops: Mapping[str, Op], observed: Mapping[str, Sequence[Measurement]], machine: Machine
    ) -> dict[str, Choice]:
        found = self._proposer.choices(list(ops.values()), [observed[key] for key in ops], machine)
        return dict(zip(ops, found, strict=True))

    def _learn(self, measured: Sequence[Measurement]) -> None:
        allowed_s = max(LEARNING_SHARE * self._elapsed_s(), LEAST_S)
        new = len(measured) >= GROWTH * self._tuned_on and len(measured) > self._tuned_on
        tune = new and self._tuned_s + self._last_s <= allowed_s
        began_s = self._clock()
        self._proposer.learn(measured, tune=tune)
        if tune:
            self._last_s, self._tuned_on = self._clock() - began_s, len(measured)
            self._tuned_s += self._last_s

    def _elapsed_s(self) -> float:
        return self._clock() - self._started_s


def _expected(choices: Mapping[str, Choice], weights: Mapping[str, float]) -> ExpectedRegret:
    regrets = [choice.expected_regret for choice in choices.values()]
    # regret is a share of the best case's time, which is the chosen one's less the regret
    best = [weights[key] / (1 + choice.expected_regret) for key, choice in choices.items()]
    step = sum(regret * own for regret, own in zip(regrets, best, strict=True)) / sum(best)
    return ExpectedRegret(step, sum(regrets) / len(regrets))
