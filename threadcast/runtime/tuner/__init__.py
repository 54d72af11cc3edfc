"""Chooses among candidates in the caller's own calls, within a budget.

A call can run in several ways: by PyTorch as it was (the baseline), by a plan of one variant of its graph, by PyTorch
in another memory format, by another library. Which is fastest depends on the machine, the sizes and what else runs, so
it is measured where it counts: in the calls that the caller makes anyway. Each does the caller's whole step.

`tournament` decides, from what `standings` knows of candidates. It is a pure state machine: events come in (a candidate
is offered, prepared, has run, differs), instructions go out (run this, prepare that, store, release). It knows no
tensor, clock or thread, so that whatever happened in the field can be replayed from its log (`events`), and told by its
story. All that is chosen by time is chosen there, in `rounds` of calls: plans and memory formats and backends
(`tuning`), whole compiled programs. Where other processes took the cores meanwhile, later processes are told nothing.

Preparing a candidate costs calls time: looks at operators run in them, planners, compilers and searches for backends
work beside them. `budget` holds what that may cost: at any call, all calls together are at most 3 s and 5 % behind
PyTorch. Within that everything that was gained may be spent. Each program and kind of calls may spend a part of what
the others leave, so that every one has its turn; one at a time learns in its calls. Next comes what is expected to gain
most for its cost.

Two candidates are compared by turns (`guard`), because a machine's speed drifts. What wins is watched (`entrant`):
where its calls alone are not clearly faster than the next best was, both are compared once more, with ever longer
waits.

A plan is prepared by `plan_candidate`: capture (`variant_graphs`), look at operators (`looks`), have it planned in
another process (`plan_maker`, `planning`). The first step by each plan also runs in PyTorch, and what has other results
never runs again (`first_steps`). `candidates` carries all of this out between the calls of one kind, which `tuning`
runs; of what was kept it looks at some calls only.
"""
