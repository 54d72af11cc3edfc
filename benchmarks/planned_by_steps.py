"""A plan as `threadcast.optimize_training` makes it, for the benchmarks of what runs one."""

import time
from contextlib import closing

from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine
from threadcast.runtime.plans.curves_in_step import LookSchedule
from threadcast.runtime.tuner.plan_maker import PlanMaker, SolvedProblem
from threadcast.runtime.tuner.plan_search import PlanSearch
from threadcast.runtime.tuner.planning import Planner


def planned_by_steps(captured: Captured, machine: Machine) -> SolvedProblem:
    """The plan, from steps that are run here."""
    looks = LookSchedule.of(machine)
    search = PlanSearch(looks.uniform, look_steps=looks.steps)
    with closing(Planner(machine)) as planner, closing(PlanMaker(captured, machine, planner=planner)) as maker:
        while search.best is None:
            _, makespan_s = maker.run(search.next_runner())
            if makespan_s is not None and search.observe(makespan_s):
                if not maker.start_planning():
                    search.nothing_to_correct()
                    continue
                while (answer := maker.poll()) is None:
                    time.sleep(0.01)
                if answer.plan is None:
                    search.look_again()
                    continue
                maker.accept(answer)
                search.planned(answer.plan.makespan_s)
    return maker.plans[search.best]
