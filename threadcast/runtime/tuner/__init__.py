"""Chooses among candidates in the caller's own calls, within a budget.

A call can run in several ways: by PyTorch as it was (the baseline), by a plan of one variant of its graph, by PyTorch
in another memory format, by another library. Which is fastest depends on the machine, the sizes and what else runs, so
it is measured where it counts: in the calls that the caller makes anyway. Each does the caller's whole step.

Each is a `Candidate` (`candidate`): it is prepared in parts, between calls, in them or beside them; then it has a `Way`
to run calls; once it has lost, it is closed until it is wanted again. PyTorch in a memory format needs no preparation.
A plan (`plan_candidate`) is captured (`variant_graphs`), its operators are looked at in steps of the caller (`looks`),
and another process makes it (`planning`). What a search of other libraries finds is ready at once (`backends_beside`).

`tournament` decides what runs the next call, from what `standings` knows of candidates. It is a pure state machine:
events come in (a candidate is offered, prepared, has run, differs), instructions go out (run this, prepare that, store,
close). It knows no tensor, clock or thread, so that whatever happened in the field can be replayed from its log
(`events`), and told by its story. `rounds` asks it before each call and carries out what it says, for calls of one kind
(`candidates` says what is offered and stored, `tuning` runs the calls) and for whole compiled programs
(`compiled.whole_calls`).

Two candidates are compared by turns (`guard`), because a machine's speed drifts; one or two hundred calls of a
millisecond decide. What wins is watched: where its calls alone are not clearly faster than the next best was, both are
compared once more, with ever longer waits. A plan is stored as soon as it is made, so that a process that ends before
it was compared leaves the comparison, and nothing else, to the next one. Where other processes took the cores
meanwhile, later processes are told nothing.

Preparing a candidate costs calls time: looks run in them; planners, compilers and searches work beside them, or while
the caller waits. Calls leave a core to what works beside them, one thing at a time: on two cores a call by both took
twice as long and gave it half a core, by one 1.6 times and gave it 0.9. `budget` holds what that may cost: at any call,
all calls together are at most 3 s and 5 % behind PyTorch. Within that everything that was gained may be spent. Each
program and kind of calls may spend a part of what the others leave, so that every one has its turn; one at a time
learns in its calls. Next comes what is expected to gain most for its cost.

The first step by each plan also runs in PyTorch, and what has other results never runs again (`first_steps`); where a
plan raises, what it has changed is set back, and PyTorch runs the call. What fails otherwise leaves calls to PyTorch.
"""
