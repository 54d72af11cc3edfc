// Operator calls on numbered values, through the dispatcher, without Python.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <vector>

namespace threadcast {

using Values = std::vector<c10::IValue>;

// Where an argument comes from: a constant, a value, the number that a value of one element holds (by itself, or as the
// tensor that an operator gets for a Python number), or a list of values.
struct Argument {
  enum class Kind { kConstant, kValue, kNumber, kWrapped, kTensors, kOptionalTensors } kind = Kind::kConstant;
  c10::IValue constant;
  size_t value = 0;
  std::vector<long> values;  // of a list; below 0: none
};

// One operator call. Its results go to the values from `first_result` on, one for each member.
struct Call {
  c10::OperatorHandle op;
  std::vector<Argument> arguments;
  size_t first_result = 0;
  size_t results = 1;

  // Calls the operator; `stack` is the calling thread's, empty before and after.
  void run(Values& values, std::vector<c10::IValue>& stack) const;
};

// All calls of a graph.
struct Program {
  std::vector<Call> calls;
  size_t values = 0;                         // inputs first
  std::vector<std::vector<int>> successors;  // of each call: those that may begin only once it is done
  std::vector<std::vector<int>> touches;     // values that each call uses, without those that are never freed
  bool grad = false;                         // whether gradients are enabled, which kernels of LSTMs look at
};

}  // namespace threadcast
