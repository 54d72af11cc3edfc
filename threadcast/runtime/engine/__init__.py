"""Runs a captured step by a plan on pinned threads, in C++.

A plan says on which cores each operator runs, with how many threads, and in which order. `replay` turns that into the
turns of each hardware thread and the few edges between threads that must be waited for: an operator that comes late
delays those after it, and breaks nothing, so times in a plan are hopes and its order is law. `lifetimes` says after
which operator each value may be freed, so that a step in any legal order needs no more memory than eager PyTorch's.

PyTorch's operators use OpenMP for their inner loops, and libgomp has one pool of workers for each thread that calls.
Many operators at a time, of changing widths, would mean many pools, whose idle workers spin on cores that others want.
So the native engine (`native`) writes its own functions into libtorch's table of imports, and the threads that a plan
gives to an operator (its team) serve the parallel regions of that operator. To PyTorch nothing has changed; to us a
change of width costs 0.4 us. `library` compiles the C++ sources once for each version of PyTorch and Python, and loads
them; `lowering` gives them program and plan as numbers.

The caller's thread takes part in each step, and is pinned within it. Between steps the threads sleep, after spinning
for a while; parallel regions of the caller's own operators run on them, too (`native/src/lent.h`), as workers of
libgomp's beside pinned threads would share their cores.

Results are those of `Captured.run` bit for bit: the same kernels at the same thread counts. An engine can change to
other cores or another plan, within a step if need be. It knows nothing of times, tuning or files. Where the C++ part
cannot be compiled, there are no plans: eager PyTorch and other libraries are all that is left to choose from.

To change how a step runs, begin with `engine.py` (the promises), then `replay.py`, then `native/src/engine.h`.
"""
