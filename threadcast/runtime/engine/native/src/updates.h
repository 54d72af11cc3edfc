// The tensors of an optimizer's steps.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <utility>
#include <vector>

#include "short_way.h"

namespace threadcast {

// Of each group its parameters, and the names of each one's tensors in the optimizer's state.
using UpdateGroups = std::vector<std::pair<pybind11::sequence, std::vector<pybind11::str>>>;

// Of each parameter that has a gradient: itself, its state, and the gradient, which alone is not written by a step.
struct UpdateTensors {
  Tensors all;
  std::vector<size_t> gradients;  // their positions

  // Whether no tensor comes twice, as a count of steps that several parameters share.
  bool apart() const;
  // Counts a write of each tensor that is written.
  void count_writes() const;
};

// None where state is missing, as before an optimizer's first step.
std::optional<UpdateTensors> tensors_of_update(const UpdateGroups& groups, const pybind11::dict& state);

}  // namespace threadcast
