"""Operators of ours, put in place of PyTorch's in a captured program, where they are right and faster.

A plan only arranges operators; what an operator itself does too slowly stays slow. Three kinds of work are common, and
can be done faster without changing what is computed:

- chains of point-wise operators, of which each reads and writes all of memory once: `clusters` finds groups of one
  shape that do not depend on themselves, `kernels` writes a C++ loop over PyTorch's own vectors and formulas
  (`pointwise`), `library` compiles all loops of a program together, and `fuse` puts them in;
- sums of edges' messages in graph networks (`edge_sums`, `aggregation`): edges are sorted once by the row they lead to;
- products of matrices by oneDNN, where the library that PyTorch uses does not know the processor (`products`).

Each is proven before its results are anybody's: the first step by each plan is judged operator by operator, on eager
PyTorch's inputs (`check`). Those inputs are seldom special; so a loop, which is made for one program, is also compared
by value with the operators in its place, once a process (`loop_check`), and loops round where these round, so that most
have the same bits. Products are timed: they stay only where they are clearly faster on this processor.

Operators are defined with the dispatcher (`threadcast::...`), so that engines, forecasts and traces treat them as all
others. `replacing` changes a program node by node.

To add an operator: say what it replaces and prove it as the others do; then time it as products; then let `fuse` put
it in.
"""
