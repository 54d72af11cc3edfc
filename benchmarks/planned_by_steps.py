"""A plan as `threadcast.optimize_training` makes it, for the benchmarks of what runs one."""

import time
from contextlib import closing
from typing import NamedTuple

from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine, Plan
from threadcast.runtime.plans.curves_in_step import LookSchedule
from threadcast.runtime.tuner.plan_maker import PlanMaker
from threadcast.runtime.tuner.planning import Planner
from threadcast.scheduler.policies import Problem


class Planned(NamedTuple):
    """A plan and the problem that it solves."""

    plan: Plan
    problem: Problem


def planned_by_steps(captured: Captured, machine: Machine) -> Planned:
    """The plan, from looks that are taken here on the captured example."""
    schedule = LookSchedule.of(machine)
    look, looks = 0, schedule.uniform
    with closing(Planner(machine)) as planner, closing(PlanMaker(captured, machine, planner=planner)) as maker:
        while True:
            for number in range(look, looks):
                for step in range(schedule.runs(0.0)):
                    maker.prepare(number, goes_on=step > 0)
                    maker.run(*captured.arguments)
            maker.start_planning()
            while (answer := maker.poll()) is None:
                time.sleep(0.01)
            if answer.plan is not None and answer.curves is not None:
                return Planned(answer.plan, maker.problem(answer.curves))
            look, looks = looks, looks + 1
