// Quick checks whether Python objects and tensors that a captured graph depends on may have changed.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace threadcast {

// Remembers dictionaries, lists and tensors as they are now. `holds` is called before every call, when the caches are
// full of other data; it does one or two independent loads for each object. Python must be older than 3.13, which no
// longer has version tags in dictionaries.
class Untouched {
 public:
  Untouched(const std::vector<pybind11::object>& tables, const std::vector<pybind11::object>& lists,
            const std::vector<pybind11::object>& tensors);

  // False once a dictionary was written to (even with the same value), a list holds other items, or a tensor was
  // exchanged or moved, or has changed its type, its shape, its strides, `requires_grad` or whether it has hooks.
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
    caffe2::TypeMeta type;
    bool trained = false, hooked = false;
    std::vector<int64_t> sides;  // sizes, then strides
  };

  std::vector<pybind11::object> tables_, lists_;
  std::vector<uint64_t> tags_;
  std::vector<std::vector<pybind11::object>> items_;  // of the lists
  std::vector<Tensor> tensors_;
};

// Remembers what attributes of objects refer to: of functions, variables of closures, slots, `__class__`, and `__dict__`
// (which dictionary that is). These lie at places in memory of their own, not in dictionaries. `rest` are the numbers of
// the others, which it does not watch.
class Unassigned {
 public:
  explicit Unassigned(const std::vector<std::pair<pybind11::object, std::string>>& attributes);

  // False once an attribute refers to another object, equal or not, or a class that has such a slot was changed.
  bool holds() const;
  const std::vector<size_t>& rest() const { return rest_; }
  int visit(visitproc visit, void* arg) const;
  void clear();

 private:
  struct Place {
    PyObject* const* at;
    PyObject* before;
  };
  struct Class {
    PyTypeObject* type;
    unsigned int version;
  };
  void watch(const pybind11::object& owner, PyObject* const* at);
  bool watch_slot(const pybind11::object& owner, const pybind11::str& name);

  std::vector<Place> places_;
  std::vector<Class> classes_;
  std::vector<pybind11::object> kept_;  // so that no address is used twice
  std::vector<size_t> rest_;
};

// Remembers the versions of tensors, and the bytes of some of their elements. `holds` is true until a write to one of
// them that torch counts, another place in memory, or other bytes, and while nobody has freed one: it keeps none alive.
class Unwritten {
 public:
  // Of each tensor the offsets in bytes, from the start of its data, of the elements whose bytes are compared.
  Unwritten(const std::vector<at::Tensor>& tensors, const std::vector<std::vector<int64_t>>& offsets);
  bool holds() const;

 private:
  struct Sample {
    const std::byte* at;
    std::array<std::byte, 16> before;
    size_t size;
  };
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> tensors_;
  std::vector<uint32_t> versions_;
  std::vector<const void*> places_;
  std::vector<Sample> samples_;
};

// Whether the node that adds gradients to the tensor's `.grad` has hooks, which Python does not show. Parameters of a
// DistributedDataParallel have them. The node exists only while something refers to it.
bool accumulates_with_hooks(const at::Tensor& tensor);

// Whether this Python's dictionaries count their changes.
constexpr bool kTagged = PY_VERSION_HEX < 0x030D0000;

}  // namespace threadcast
