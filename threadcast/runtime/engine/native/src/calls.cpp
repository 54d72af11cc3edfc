#include "calls.h"

#include <ATen/ScalarOps.h>

namespace threadcast {
namespace {

c10::IValue list_of(const Argument& argument, const Values& values) {
  if (argument.kind == Argument::Kind::kTensors) {
    c10::List<at::Tensor> tensors;
    tensors.reserve(argument.values.size());
    for (long value : argument.values) tensors.push_back(values[value].toTensor());
    return tensors;
  }
  c10::List<std::optional<at::Tensor>> tensors;
  tensors.reserve(argument.values.size());
  for (long value : argument.values)
    tensors.push_back(value < 0 ? std::nullopt : std::optional<at::Tensor>(values[value].toTensor()));
  return tensors;
}

// Numbers that change from step to step are float64 tensors without dimensions: item() would go through the dispatcher.
double number_in(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kDouble && tensor.numel() == 1) return *tensor.const_data_ptr<double>();
  return tensor.item<double>();
}

// Below all other numbers in the promotion of types, as a Python number is.
at::Tensor wrapped(double number) {
  at::Tensor tensor = c10::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

}  // namespace

void Call::run(Values& values, std::vector<c10::IValue>& stack) const {
  for (const Argument& argument : arguments) {
    switch (argument.kind) {
      case Argument::Kind::kConstant: stack.push_back(argument.constant); break;
      case Argument::Kind::kValue: stack.push_back(values[argument.value]); break;
      case Argument::Kind::kNumber: stack.push_back(number_in(values[argument.value].toTensor())); break;
      case Argument::Kind::kWrapped: stack.push_back(wrapped(number_in(values[argument.value].toTensor()))); break;
      default: stack.push_back(list_of(argument, values));
    }
  }
  try {
    op.callBoxed(stack);
  } catch (...) {
    stack.clear();
    throw;
  }
  if (stack.size() == 1 && stack[0].isTensorList()) {  // a value for each member
    const c10::List<at::Tensor> members = stack[0].toTensorList();
    for (size_t i = 0; i < results && i < members.size(); ++i) values[first_result + i] = members.get(i);
  } else {
    for (size_t i = 0; i < results && i < stack.size(); ++i) values[first_result + i] = std::move(stack[i]);
  }
  stack.clear();
}

}  // namespace threadcast
