"""A plan as `threadcast.optimize_training` makes it, for the benchmarks of what runs one."""

from contextlib import closing

from threadcast.capture.capture import Captured
from threadcast.core import Machine
from threadcast.runtime.plans.curves_in_step import probe_cases
from threadcast.runtime.tuning.plan_maker import PlanMaker, SolvedProblem
from threadcast.runtime.tuning.plan_search import PlanSearch


def planned_by_steps(captured: Captured, machine: Machine) -> SolvedProblem:
    """The plan, from steps that are run here."""
    search = PlanSearch(probe_cases(machine))
    with closing(PlanMaker(captured, machine, before=lambda: None)) as maker:
        while search.best is None:
            _, makespan_s = maker.run(search.next_runner())
            if makespan_s is None:
                if (plan := maker.poll()) is not None:
                    search.planned(plan.makespan_s)
            elif search.observe(makespan_s) and not maker.start_planning():
                search.nothing_to_correct()
    return maker.plans[search.best]
