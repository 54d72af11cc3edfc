// Sums of edges' messages by the row that each edge leads to, as graph networks make them.
#pragma once

namespace threadcast {

// Defines these operators, once in a process:
//
// `threadcast::edge_order(to, rows)`: `to` (edges) int64 are rows below `rows`. Returns `offsets` (rows + 2) and `order`
// (edges), both int32: the edges that lead to row r are order[offsets[r]] to order[offsets[r + 1] - 1], in their own
// order. `order` is empty where a row is outside of the range.
//
// `threadcast::gather_add(source, origin?, scale?, to, offsets, order, rows)`: zeros (rows, ...) float32, to row to[e] of
// which row origin[e] of `source` is added for each edge e in turn, row e without `origin`, times `scale` where there is
// one: (edges, 1), or (edges, heads, 1) for rows of (heads, ...). Bit by bit what `index_select`, `mul` and
// `scatter_add_` give, which also run in its place, and raise their errors, where an index is outside of its range.
void define_aggregation();

}  // namespace threadcast
