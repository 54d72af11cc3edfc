// Whether anything that a captured graph takes for granted may have changed since it was last looked at.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <vector>

namespace threadcast {

// Dictionaries, lists and tensors as they are now. Asked before every call, when the caches are full of other data: one
// load or two for each thing, all of them independent. Python must be older than 3.13, which gave up dictionaries' tags.
class Untouched {
 public:
  Untouched(const std::vector<pybind11::object>& tables, const std::vector<pybind11::object>& lists,
            const std::vector<pybind11::object>& tensors);

  // False once a dictionary was written to, a list holds other items, or a tensor is another, lies elsewhere, is
  // trained or not any more, or has hooks or none any more. What is written back also counts as written.
  bool holds() const;

  // For Python's garbage collector: what is watched may well hold what watches it (a model that has its optimised self
  // as an attribute).
  int visit(visitproc visit, void* arg) const;
  void clear();

 private:
  struct Tensor {
    pybind11::object object;
    at::Tensor tensor;  // kept alive: the object may come to stand for another (torch.utils.swap_tensors)
    const void* data = nullptr;
    bool trained = false, hooked = false;
    std::vector<int64_t> sides;  // sizes, then strides
  };

  std::vector<pybind11::object> tables_, lists_;
  std::vector<uint64_t> tags_;
  std::vector<std::vector<pybind11::object>> items_;  // of the lists
  std::vector<Tensor> tensors_;
};

// Whether nobody has written to these tensors since, as far as torch counts.
class Unwritten {
 public:
  explicit Unwritten(std::vector<at::Tensor> tensors);
  bool holds() const;

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<uint32_t> versions_;
};

// Whether this Python's dictionaries count their changes.
constexpr bool kTagged = PY_VERSION_HEX < 0x030D0000;

}  // namespace threadcast
