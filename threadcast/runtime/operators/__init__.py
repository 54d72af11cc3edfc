"""Operators of ours, put in place of PyTorch's in a captured program, where they are right and faster.

A plan only arranges operators; what an operator itself does too slowly stays slow. Three kinds of work are common, and
can be done faster without changing what is computed:

- chains of point-wise operators, of which each reads and writes all of memory once: `clusters` finds groups of one
  shape that do not depend on themselves, `kernels` writes a C++ loop over PyTorch's own vectors and formulas
  (`pointwise`), which reads views where they lie (`parts`), `library` compiles all loops of a program together, and
  `fuse` puts them in;
- sums of edges' messages in graph networks (`edge_sums`, `aggregation`): edges are sorted once by the row they lead to;
- products of matrices by oneDNN, where the library that PyTorch uses does not know the processor (`products`).

Each is proven before it runs. A loop is compared by value with the operators in its place, once a process
(`loop_check`); sums and products are compared with PyTorch's when they are first wanted, products timed beside them:
they stay only where they are clearly faster on this processor. Loops round where PyTorch's operators round, so that
most have the same bits; the first step by each plan is compared in any case (`check`).

Operators are defined with the dispatcher (`threadcast::...`), so that engines, forecasts and traces treat them as all
others. `replacing` changes a program node by node.

To add an operator: say what it replaces and prove it as the others do; then time it as products; then let `fuse` put
it in.
"""
