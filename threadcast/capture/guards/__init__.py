"""What a recorded call depends on beside its arguments, and whether it still holds.

Python may read anything while a call runs. A graph of the call has built in whatever was read: the number in an
attribute, the length of a list, the branch that a global variable decides. Run again, the graph is right only as long
as all of it is as it was. What a call *does* besides calling operators (counts, prints, fills a cache), a graph does
not do at all. So a call is recorded under three rules:

1. **Watch what code can plainly read.** `reachable` walks from the functions of a call through code and objects
   together: global variables, closures, defaults, bound objects, classes, containers. Of an object only the attributes
   count whose names occur in code that can be reached (`code_names`, `read_names`), so that a trainer's step counter
   does not matter to a loss that never names it; where code computes names (`getattr`), all. Libraries' code is not
   followed (`libraries`): it does the same in each call, unless a user's function was put in its place. `python_state`
   is a snapshot of what was found. Values are compared by identity, constants by type and value, and what has changed
   is told by the name that a user has for it. `runtime.watching` asks it before each call, in microseconds.
2. **Refuse, in words, what cannot be watched**: iterators, clocks, open files, texts that are run as code, memory of
   `ctypes`, what other threads hold (`objects` knows which values hide others). Refused means that PyTorch runs the
   call, as it would without us, and that `.reports` names the reason. Watching too much costs a graph that is recorded
   anew; watching too little gives a wrong number: in doubt, watch or refuse.
3. **Leave no trace, and refuse calls that leave one.** A call is recorded with fake tensors that must not stay
   anywhere. All that it could set is put back (`module_values`, `python_state.restore`), function caches that it would
   fill are kept from it (`function_caches`), what it says is not shown, and draws, seeds, files and clocks raise
   (`printing`, `random_state`), as do numbers taken out of tensors past the operators, and containers among the
   arguments (`past_operators`). What stands for a function does so for the thread that captures (`one_capture`). A call
   that did any of this runs in PyTorch now. Some do it only once, to fill a cache; so the next call is tried again, and
   after some attempts no more.

`unsupported` says which modules, tensors and operators are never recorded, `one_capture` has threads take turns. What
is decided by numbers *in tensors* (`item`, masks) is no matter of Python: `graph.numbers` finds these out before each
call by running the few operators that they come from.

Nothing here knows of graphs. What decides between watching and refusing is a table of cases that people write, in
docs/decisions/0082-guards.md, each with what it costs here and what would go wrong without it.
"""
