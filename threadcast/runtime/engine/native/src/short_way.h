// A forward and a backward pass by two engines, with what lies between both kept without Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine.h"

namespace threadcast {

using Tensors = std::vector<at::Tensor>;
using Watched = std::vector<torch::autograd::SavedVariable>;

// What calls must have in common to run as one of them did: the thread's modes, and of each tensor all but its numbers
// and whether it requires a gradient, which Dynamo guards.
class Looks {
 public:
  explicit Looks(const Tensors& examples);  // of a call that is being made now, in this thread

  bool fit(const Tensors& tensors) const;
  // A gradient in the order of the example at `position`, for which the graph was traced.
  at::Tensor arranged(const at::Tensor& gradient, size_t position) const;

 private:
  struct Look {
    c10::DispatchKeySet keys;
    caffe2::TypeMeta dtype;
    std::vector<int64_t> sizes, strides;
  };
  struct Modes {
    c10::DispatchKeySet included, excluded;
    bool grad;
    caffe2::TypeMeta dtype;
    bool operator==(const Modes&) const = default;
  };
  static Modes modes();
  static bool fits(const Look& look, const at::Tensor& tensor);

  Modes modes_;
  std::vector<Look> looks_;
};

// What a forward pass keeps for its backward pass. Of inputs and results autograd's versions are noted. Backward passes
// of several threads may use it.
class Saved {
 public:
  Saved(Tensors values, const Tensors& inputs, const Tensors& results, const std::vector<size_t>& written);

  // Raises autograd's errors where one of the caller's tensors was written since, and where all was dropped.
  Tensors unpack() const;
  // Keeps nothing any more. Returns the caller's tensors, which a thread without Python's lock had better not free.
  std::shared_ptr<const Watched> drop();
  bool dropped() const;

 private:
  // Guards the two pointers. A tensor that comes or goes may wait for Python's lock, whose holder may wait for this one.
  mutable std::mutex changing_;
  std::shared_ptr<const Tensors> values_;   // none once all was dropped
  std::shared_ptr<const Watched> watched_;  // the caller's tensors whose memory the values share
};

// A forward graph: its first results are written to the inputs `written`, the next `outputs` are the program's, and all
// others are kept.
struct Forward {
  Looks looks;
  std::vector<size_t> written;
  size_t outputs;
  std::vector<size_t> wanted;  // values that are the results, by an engine
  Values others;               // an engine's inputs after the arguments

  std::pair<Tensors, std::shared_ptr<Saved>> divided(Tensors results, const Tensors& arguments) const;
};

// A backward graph, which takes what was kept and the gradients at the positions `gradients`.
struct Backward {
  Looks looks;
  std::vector<size_t> gradients;
  std::vector<std::optional<size_t>> wanted;
  Values others;
  std::vector<size_t> apart;  // positions of results that are tensors of their own, but one value

  Tensors inputs(const Saved& saved, const Tensors& given) const;
};

// Both run a step, for a thread that must not hold Python's lock: a forward pass on arguments whose looks fit, and a
// backward pass if its inputs' do. The `last` backward pass drops what was kept once it has begun, so that its operators
// free it.
std::pair<Tensors, std::shared_ptr<Saved>> run_forward(Relay& relay, const Forward& forward, const Tensors& arguments);
std::optional<Tensors> run_backward(Relay& relay, const Backward& backward, Saved& saved, const Tensors& given,
                                    bool last);

}  // namespace threadcast
