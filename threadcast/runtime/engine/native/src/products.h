// Products of matrices by oneDNN's kernels for blocks, which use all vector instructions that a CPU has. MKL, which
// PyTorch's own operators call, uses AVX-512 on Intel's CPUs only.
#pragma once

namespace threadcast {

// Defines these operators, once in a process, for float32. Returns whether they are there: versions of PyTorch without
// such kernels have none.
//
// `threadcast::product(added?, a, b)`: a (rows, depth) times b (depth, columns), or `batches` of both, plus `added`,
// which is broadcast to the result's sizes.
//
// `threadcast::product_(total, a, b)`: the same, added to `total`.
//
// Matrices may lie in memory in any way; those whose rows or columns are contiguous are not copied as wholes.
bool define_products();

}  // namespace threadcast
