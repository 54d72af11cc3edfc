// The largest numbers of windows of images whose rows are contiguous, in vectors of windows. PyTorch's operator goes
// through such images number by number.
#pragma once

namespace threadcast {

// Defines `threadcast::max_pool(x, size, kernel, stride, padding, dilation)`, once in a process: what
// `max_pool2d_with_indices` returns for x (..., height, width) of float32, bit for bit. `size` are the sides of
// the result.
void define_pools();

}  // namespace threadcast
