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

bool UpdateTensors::apart() const {
  std::vector<const void*> found;
  found.reserve(all.size());
  for (const at::Tensor& one : all) found.push_back(one.unsafeGetTensorImpl());
  std::sort(found.begin(), found.end(), std::less<>());
  return std::adjacent_find(found.begin(), found.end()) == found.end();
}

void UpdateTensors::count_writes() const {
  size_t before = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (before < gradients.size() && gradients[before] == i)
      ++before;
    else if (!all[i].is_inference())
      all[i].unsafeGetTensorImpl()->bump_version();
  }
}

std::optional<UpdateTensors> tensors_of_update(const UpdateGroups& groups, const py::dict& state) {
  UpdateTensors found;
  for (const auto& [parameters, names] : groups) {
    for (const py::handle one : parameters) {
      const at::Tensor& parameter = tensor_of(one.ptr());
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      found.all.push_back(parameter);
      PyObject* own = names.empty() ? nullptr : item(state.ptr(), one.ptr());
      if (!names.empty() && (own == nullptr || !PyDict_Check(own))) return std::nullopt;
      for (const py::str& name : names) {
        PyObject* tensor = item(own, name.ptr());
        if (tensor == nullptr || tensor == Py_None) return std::nullopt;
        found.all.push_back(tensor_of(tensor));
      }
      found.gradients.push_back(found.all.size());
      found.all.push_back(gradient);
    }
  }
  return found;
}

}  // namespace threadcast
