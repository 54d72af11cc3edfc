// Operators made of a compiled loop over elements: several point-wise operators in one pass over memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace threadcast {

// What the loop reads of an input: all, where `whole` is empty, else a view of a tensor whose sizes and strides are the
// numbers of `whole`. Strides and offset in elements.
struct Part {
  int64_t offset = 0;
  std::vector<int64_t> sizes, strides, whole;
};

struct FusedSpec {
  std::vector<int64_t> sizes;  // of the loop
  std::vector<Part> inputs;
  std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> outputs;  // sizes and strides of each
};

// Defines `threadcast::name` with this schema, which runs `symbol` of the shared object at `path` on tensors of
// float32 that are broadcast to the loop's sizes. Throws std::runtime_error where the object cannot be loaded.
void define_fused(const std::string& schema, const std::string& name, const std::string& path,
                  const std::string& symbol, FusedSpec spec);

}  // namespace threadcast
