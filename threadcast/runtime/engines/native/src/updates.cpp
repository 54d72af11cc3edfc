#include "updates.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

namespace py = pybind11;

namespace threadcast {
namespace {

// The value of a key, without a default for one that is missing.
PyObject* item(PyObject* table, PyObject* key) {
  PyObject* found = PyDict_GetItemWithError(table, key);
  if (found == nullptr && PyErr_Occurred()) throw py::error_already_set();
  return found;
}

const at::Tensor& tensor_of(PyObject* object) {
  if (!THPVariable_Check(object)) throw py::type_error("an optimizer holds what is no tensor");
  return THPVariable_Unpack(object);
}

}  // namespace

Tensors UpdateTensors::all() const {
  Tensors found = written;
  found.insert(found.end(), gradients.begin(), gradients.end());
  return found;
}

bool UpdateTensors::apart() const {
  std::vector<const void*> places;
  for (const at::Tensor& one : written)
    if (one.layout() == at::kStrided && one.numel() > 0) places.push_back(one.const_data_ptr());
  std::sort(places.begin(), places.end(), std::less<>());
  return std::adjacent_find(places.begin(), places.end()) == places.end();
}

void UpdateTensors::count_writes() const {
  for (const at::Tensor& one : written)
    if (!one.is_inference()) one.unsafeGetTensorImpl()->bump_version();
}

std::optional<UpdateTensors> tensors_of_update(const UpdateGroups& groups, const py::dict& state) {
  UpdateTensors found;
  for (const auto& [parameters, names] : groups) {
    for (const py::handle one : parameters) {
      const at::Tensor& parameter = tensor_of(one.ptr());
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      found.written.push_back(parameter);
      found.gradients.push_back(gradient);
      if (names.empty()) continue;
      PyObject* own = item(state.ptr(), one.ptr());
      if (own == nullptr || !PyDict_Check(own)) return std::nullopt;
      for (const py::str& name : names) {
        PyObject* tensor = item(own, name.ptr());
        if (tensor == nullptr || tensor == Py_None) return std::nullopt;
        found.written.push_back(tensor_of(tensor));
      }
    }
  }
  return found;
}

}  // namespace threadcast
