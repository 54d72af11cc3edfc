"""Plans of a step: the curves they are made from, the planner's process, their store, and how they follow the cores.

A plan needs times of each operator at each number of threads: curves. They come from the step itself
(`curves_in_step`: a few of the caller's steps are timed operator by operator, at a few thread counts), and from what
was measured of the same operators before, on this machine (`step_forecasts`) or by a service (`service_feedback`).
`forecasting_planner` is the process in which forecasts and plans are made, at lowest priority, so that neither its
imports nor its search take the caller's cores.

A plan that has won is stored (`plan_store`) by the graph that it is for, and what was tried beside it, so that a later
process begins with it. `backend_history` is the same for other libraries: what each gained and cost for networks of a
kind. `model_format` keeps the order of a model's weights in memory, which a plan of a network with images may want
otherwise; `variant` names the forms of a graph: memory format, and fused or not.

Cores come and go. `malleable_plan` keeps plans for fewer cores and changes a running engine to them; `model_cores` is
what a model may use now, and what the user has asked for.

Looks give back (`step_feedback`): what they have shown of operators, a process of its own (`service_feedback`) adds to
the store, and sends to a service.

Nothing here decides what runs a call: that is `tuner`'s.
"""
