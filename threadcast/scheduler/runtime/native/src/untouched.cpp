#include "untouched.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <stdexcept>

namespace threadcast {
namespace {

// PEP 509: another number after every change, unique in the process.
const uint64_t& tag_of(PyObject* table) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return reinterpret_cast<PyDictObject*>(table)->ma_version_tag;
#pragma GCC diagnostic pop
}

bool has_hooks(PyObject* hooks) { return hooks != nullptr && hooks != Py_None && PyObject_Size(hooks) != 0; }

bool is_hooked(const pybind11::object& object) {
  const auto* variable = reinterpret_cast<const THPVariable*>(object.ptr());
  return has_hooks(variable->backward_hooks) || has_hooks(variable->post_accumulate_grad_hooks);
}

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

bool lies_so(const at::TensorImpl& tensor, const std::vector<int64_t>& sides) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  return sizes.size() + strides.size() == sides.size() && std::equal(sizes.begin(), sizes.end(), sides.begin()) &&
         std::equal(strides.begin(), strides.end(), sides.begin() + sizes.size());
}

}  // namespace

Untouched::Untouched(const std::vector<pybind11::object>& tables, const std::vector<pybind11::object>& lists,
                     const std::vector<pybind11::object>& tensors)
    : tables_(tables), lists_(lists), tags_(tables.size()), lengths_(lists.size()) {
  if (!kTagged) throw std::invalid_argument("this Python's dictionaries do not count their changes");
  for (const auto& table : tables)
    if (!PyDict_Check(table.ptr())) throw std::invalid_argument("not a dictionary");
  for (const auto& list : lists)
    if (!PyList_Check(list.ptr())) throw std::invalid_argument("not a list");
  for (const auto& object : tensors) {
    if (!THPVariable_Check(object.ptr())) throw std::invalid_argument("not a tensor");
    tensors_.push_back({object, THPVariable_Unpack(object.ptr()).unsafeGetTensorImpl()});
  }
  renew();
}

bool Untouched::holds() const {
  constexpr size_t kAhead = 16;
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (i + kAhead < tables_.size()) __builtin_prefetch(&tag_of(tables_[i + kAhead].ptr()));
    if (tag_of(tables_[i].ptr()) != tags_[i]) return false;
  }
  for (size_t i = 0; i < lists_.size(); ++i)
    if (PyList_GET_SIZE(lists_[i].ptr()) != lengths_[i]) return false;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (i + kAhead < tensors_.size()) {
      const auto* next = reinterpret_cast<const char*>(tensors_[i + kAhead].tensor);
      for (size_t line = 0; line < sizeof(at::TensorImpl); line += 64) __builtin_prefetch(next + line);
    }
    const Tensor& held = tensors_[i];
    if (held.tensor->data() != held.data || held.tensor->requires_grad() != held.trained ||
        !lies_so(*held.tensor, held.sides) || is_hooked(held.object) != held.hooked)
      return false;
  }
  return true;
}

void Untouched::renew() {
  for (size_t i = 0; i < tables_.size(); ++i) tags_[i] = tag_of(tables_[i].ptr());
  for (size_t i = 0; i < lists_.size(); ++i) lengths_[i] = PyList_GET_SIZE(lists_[i].ptr());
  for (Tensor& held : tensors_) {
    held.data = held.tensor->data();
    held.trained = held.tensor->requires_grad();
    held.hooked = is_hooked(held.object);
    held.sides.assign(held.tensor->sizes().begin(), held.tensor->sizes().end());
    held.sides.insert(held.sides.end(), held.tensor->strides().begin(), held.tensor->strides().end());
  }
}

Unwritten::Unwritten(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  for (const at::Tensor& tensor : tensors_) versions_.push_back(version_of(tensor));
}

bool Unwritten::holds() const {
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (version_of(tensors_[i]) != versions_[i]) return false;
  return true;
}

}  // namespace threadcast
