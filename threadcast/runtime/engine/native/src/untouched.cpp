#include "untouched.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <structmember.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace py = pybind11;

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

// Whether attributes are read as those of `object`; dict, list and tuple have descriptors of their own that do so.
bool reads_as_object(PyTypeObject* type) {
  PyObject* read = _PyType_Lookup(type, py::str("__getattribute__").ptr());
  return read != nullptr && Py_IS_TYPE(read, &PyWrapperDescr_Type) &&
         reinterpret_cast<PyWrapperDescrObject*>(read)->d_wrapped == reinterpret_cast<void*>(PyObject_GenericGetAttr);
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
    const at::TensorImpl* lies = tensor.unsafeGetTensorImpl();
    Tensor held{object, tensor, lies->data(), lies->dtype(), tensor.requires_grad(), is_hooked(object), {}};
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
        tensor->dtype() != held.type || tensor->requires_grad() != held.trained || !lies_so(*tensor, held.sides) ||
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

Unassigned::Unassigned(const std::vector<std::pair<py::object, std::string>>& attributes) {
  for (size_t i = 0; i < attributes.size(); ++i) {
    const auto& [owner, name] = attributes[i];
    PyObject* object = owner.ptr();
    if (PyFunction_Check(object) && (name == "__code__" || name == "__defaults__" || name == "__kwdefaults__")) {
      auto* function = reinterpret_cast<PyFunctionObject*>(object);
      watch(owner, name == "__code__"       ? &function->func_code
                   : name == "__defaults__" ? &function->func_defaults
                                            : &function->func_kwdefaults);
    } else if (PyCell_Check(object) && name == "cell_contents") {
      watch(owner, &reinterpret_cast<PyCellObject*>(object)->ob_ref);
    } else if (!watch_slot(owner, py::str(name))) {
      rest_.push_back(i);
    }
  }
}

void Unassigned::watch(const py::object& owner, PyObject* const* at) {
  places_.push_back({at, *at});
  kept_.push_back(owner);
  if (*at != nullptr) kept_.push_back(py::reinterpret_borrow<py::object>(*at));
}

bool Unassigned::watch_slot(const py::object& owner, const py::str& name) {
  PyObject* object = owner.ptr();
  PyTypeObject* type = Py_TYPE(object);
  if (!reads_as_object(type)) return false;
  // Not in `PyBaseObject_Type.tp_dict`, which is null since Python 3.12.
  const auto of_object = [](const char* one) { return _PyType_Lookup(&PyBaseObject_Type, py::str(one).ptr()); };
  PyObject* found = _PyType_Lookup(type, name.ptr());  // gives the class a version, too
  if (found == nullptr) return false;
  if (found == of_object("__class__")) {
    watch(owner, reinterpret_cast<PyObject* const*>(&object->ob_type));
    return true;
  }
  if (name.equal(py::str("__dict__")) && Py_IS_TYPE(found, &PyGetSetDescr_Type)) {
    PyObject* const* at = _PyObject_GetDictPtr(object);
    if (at != nullptr && *at != nullptr) watch(owner, at);
    return at != nullptr && *at != nullptr;
  }
  if (!Py_IS_TYPE(found, &PyMemberDescr_Type) || !PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) return false;
  const auto* slot = reinterpret_cast<PyMemberDescrObject*>(found);
  if (slot->d_member->type != T_OBJECT_EX || !PyType_IsSubtype(type, PyDescr_TYPE(slot))) return false;
  watch(owner, reinterpret_cast<PyObject* const*>(&object->ob_type));
  watch(owner, reinterpret_cast<PyObject* const*>(reinterpret_cast<char*>(object) + slot->d_member->offset));
  const auto known = std::find_if(classes_.begin(), classes_.end(), [&](const Class& one) { return one.type == type; });
  if (known == classes_.end()) classes_.push_back({type, type->tp_version_tag});
  return true;
}

bool Unassigned::holds() const {
  constexpr size_t kAhead = 16;
  for (const Class& one : classes_)
    if (one.type->tp_version_tag != one.version) return false;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (i + kAhead < places_.size()) __builtin_prefetch(places_[i + kAhead].at);
    if (*places_[i].at != places_[i].before) return false;
  }
  return true;
}

int Unassigned::visit(visitproc visit, void* arg) const {
  for (const auto& object : kept_) Py_VISIT(object.ptr());
  return 0;
}

void Unassigned::clear() {
  const auto kept = std::move(kept_);
  kept_.clear(), places_.clear(), classes_.clear();
}

Unwritten::Unwritten(const std::vector<at::Tensor>& tensors, const std::vector<std::vector<int64_t>>& offsets) {
  if (offsets.size() != tensors.size()) throw std::invalid_argument("offsets for other tensors");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    tensors_.emplace_back(tensor.getIntrusivePtr());
    versions_.push_back(version_of(tensor));
    places_.push_back(offsets[i].empty() ? nullptr : tensor.const_data_ptr());
    for (const int64_t offset : offsets[i]) {
      Sample sample{static_cast<const std::byte*>(tensor.const_data_ptr()) + offset, {}, tensor.itemsize()};
      if (sample.size > sample.before.size()) throw std::invalid_argument("an element of more than 16 bytes");
      std::memcpy(sample.before.data(), sample.at, sample.size);
      samples_.push_back(sample);
    }
  }
}

bool Unwritten::holds() const {
  std::vector<at::Tensor> alive;  // until their elements have been compared
  alive.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    auto held = tensors_[i].lock();
    if (!held) return false;
    const at::Tensor& tensor = alive.emplace_back(std::move(held));
    if (version_of(tensor) != versions_[i]) return false;
    if (places_[i] != nullptr && tensor.const_data_ptr() != places_[i]) return false;
  }
  constexpr size_t kAhead = 16;
  for (size_t i = 0; i < samples_.size(); ++i) {
    if (i + kAhead < samples_.size()) __builtin_prefetch(samples_[i + kAhead].at);
    if (std::memcmp(samples_[i].at, samples_[i].before.data(), samples_[i].size) != 0) return false;
  }
  return true;
}

}  // namespace threadcast
