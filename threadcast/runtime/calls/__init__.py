"""Which calls are of one kind, and what runs the calls of each kind.

A recorded call holds for some calls only: those with the same structure of arguments, the same shapes, types and
strides, the same numbers read, the same state of what it depends on. Such calls are of one kind (`kinds`). Each kind
has a row in a `table`: what runs it (a `Tuning`), or why PyTorch does (`fallback`). The table is bounded in bytes, and
the kind that was used least recently makes room.

A call goes through these questions, the cheapest first:

1. `left_alone`: do calls that look like this one run in PyTorch in any case? Then nothing more is asked.
2. `conditions`: is something around the call, such as a hook, a mode or autocast, under which PyTorch runs it?
3. `table`: is its kind in the table? Calls that differ in sizes, or in a number that the call reads out of a tensor,
   are of different kinds.
4. `short`: is it worth a capture? Calls of a few microseconds, and kinds that never come again, are not.
5. `learned_calls`: capture it, and begin to learn what runs it fastest. `spec` says what the call is in eager PyTorch,
   and in which ways it may run.

`learned_calls` is the base of both doors (`Optimized`, `GraphCalls`), which only look at a call and find its kind: here
kinds are timed, captured, verified, told of, and dropped when the cores are others. `shared_learning` is what all that
learns in a process shares: its budget. `result_layout` gives results the strides that eager PyTorch gives them,
whatever memory format runs the call.

Nothing here runs a step or compares times: `tuner` does.
"""
