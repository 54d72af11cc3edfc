#include "untouched.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

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
  return has_hooks(variable->backward_hooks) || has_hooks(variable->post_accumulate_grad_hooks) ||
         accumulates_with_hooks(THPVariable_Unpack(object.ptr()));
}

bool holds_items(PyObject* list, const std::vector<pybind11::object>& items) {
  if (PyList_GET_SIZE(list) != static_cast<Py_ssize_t>(items.size())) return false;
  for (size_t i = 0; i < items.size(); ++i)
    if (PyList_GET_ITEM(list, static_cast<Py_ssize_t>(i)) != items[i].ptr()) return false;
  return true;
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

bool accumulates_with_hooks(const at::Tensor& tensor) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(tensor);
  return node != nullptr && !(node->pre_hooks().empty() && node->post_hooks().empty());
}

Untouched::Untouched(const std::vector<pybind11::object>& tables, const std::vector<pybind11::object>& lists,
                     const std::vector<pybind11::object>& tensors)
    : tables_(tables), lists_(lists) {
  if (!kTagged) throw std::invalid_argument("this Python's dictionaries do not count their changes");
  for (const auto& table : tables) {
    if (!PyDict_Check(table.ptr())) throw std::invalid_argument("not a dictionary");
    tags_.push_back(tag_of(table.ptr()));
  }
  for (const auto& list : lists) {
    if (!PyList_Check(list.ptr())) throw std::invalid_argument("not a list");
    items_.push_back(list.cast<std::vector<pybind11::object>>());
  }
  for (const auto& object : tensors) {
    if (!THPVariable_Check(object.ptr())) throw std::invalid_argument("not a tensor");
    const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
    Tensor held{object, tensor, tensor.unsafeGetTensorImpl()->data(), tensor.requires_grad(), is_hooked(object), {}};
    held.sides.assign(tensor.sizes().begin(), tensor.sizes().end());
    held.sides.insert(held.sides.end(), tensor.strides().begin(), tensor.strides().end());
    tensors_.push_back(std::move(held));
  }
}

bool Untouched::holds() const {
  constexpr size_t kAhead = 16;
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (i + kAhead < tables_.size()) __builtin_prefetch(&tag_of(tables_[i + kAhead].ptr()));
    if (tag_of(tables_[i].ptr()) != tags_[i]) return false;
  }
  for (size_t i = 0; i < lists_.size(); ++i)
    if (!holds_items(lists_[i].ptr(), items_[i])) return false;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (i + kAhead < tensors_.size()) {
      const auto* next = reinterpret_cast<const char*>(tensors_[i + kAhead].tensor.unsafeGetTensorImpl());
      for (size_t line = 0; line < sizeof(at::TensorImpl); line += 64) __builtin_prefetch(next + line);
    }
    const Tensor& held = tensors_[i];
    const at::TensorImpl* tensor = held.tensor.unsafeGetTensorImpl();
    if (THPVariable_Unpack(held.object.ptr()).unsafeGetTensorImpl() != tensor || tensor->data() != held.data ||
        tensor->requires_grad() != held.trained || !lies_so(*tensor, held.sides) ||
        is_hooked(held.object) != held.hooked)
      return false;
  }
  return true;
}

int Untouched::visit(visitproc visit, void* arg) const {
  for (const auto* objects : {&tables_, &lists_})
    for (const auto& object : *objects) Py_VISIT(object.ptr());
  for (const auto& items : items_)
    for (const auto& item : items) Py_VISIT(item.ptr());
  for (const Tensor& held : tensors_) Py_VISIT(held.object.ptr());
  return 0;
}

void Untouched::clear() {
  // Moved out first: what goes may ask this for what it holds.
  const auto tables = std::move(tables_), lists = std::move(lists_);
  const auto items = std::move(items_);
  const auto tensors = std::move(tensors_);
  tables_.clear(), lists_.clear(), items_.clear(), tensors_.clear();
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
