"""A plan as `threadcast.optimize_training` makes it, for the benchmarks of what runs one."""

from threadcast.runtime.plan_maker import Made, PlanMaker


def planned_by_steps(maker: PlanMaker) -> Made:
    """The plan, from steps that are run here."""
    making = maker.made()
    try:
        while True:
            next(making)()
    except StopIteration as end:
        found: Made = end.value
        return found
