#include "operators.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>

#include "openmp.h"

namespace threadcast {
namespace {

// Elements that a thread should have, at least: an eighth of PyTorch's grain, as a loop does the work of several.
constexpr int64_t kGrain = 4096;

// `operands` start at the first element; `strides` are in elements along the loop.
using Loop = void (*)(char* const* operands, const int64_t* strides, int64_t count);

// The loop's dimensions, outermost first, those that lie one after the other in all operands made one.
struct Walk {
  std::vector<std::vector<int64_t>> given;    // sizes, then strides, of each input for which this was made
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> strides;  // of each dimension, by operand
  int64_t count = 1;

  bool fits(const std::vector<at::Tensor>& inputs) const {
    for (size_t k = 0; k < inputs.size(); ++k) {
      const size_t dims = inputs[k].dim();
      const at::IntArrayRef known(given[k]);
      if (known.size() != 2 * dims || inputs[k].sizes() != known.slice(0, dims) ||
          inputs[k].strides() != known.slice(dims))
        return false;
    }
    return true;
  }

  // Runs elements `from` to `to` of all, in loops along the innermost dimension. `operands` are the first elements.
  void run(Loop loop, const std::vector<char*>& operands, int64_t from, int64_t to) const {
    const size_t inner = sizes.size() - 1;
    const int64_t length = sizes[inner];
    c10::SmallVector<char*, 24> at(operands.size());
    while (from < to) {
      int64_t row = from / length;
      const int64_t first = from % length;
      for (size_t k = 0; k < operands.size(); ++k) at[k] = operands[k] + first * strides[inner][k] * sizeof(float);
      for (size_t d = inner; d-- > 0;) {
        const int64_t index = row % sizes[d];
        row /= sizes[d];
        for (size_t k = 0; k < operands.size(); ++k) at[k] += index * strides[d][k] * sizeof(float);
      }
      const int64_t here = std::min(length - first, to - from);
      loop(at.data(), strides[inner].data(), here);
      from += here;
    }
  }
};

struct Portion { const Walk* walk; Loop loop; const std::vector<char*>* operands; int64_t chunk; };

void run_portions(void* data) {
  const auto& [walk, loop, operands, chunk] = *static_cast<const Portion*>(data);
  // A team may be smaller than it was asked to be.
  for (int64_t from = omp_rank() * chunk; from < walk->count; from += omp_team() * chunk)
    walk->run(loop, *operands, from, std::min(walk->count, from + chunk));
}

class Fused : public c10::OperatorKernel {
 public:
  Fused(Loop loop, FusedSpec spec) : loop_(loop), spec_(std::move(spec)) {
    order_.resize(spec_.sizes.size());
    std::iota(order_.begin(), order_.end(), 0);
    const auto& strides = spec_.outputs[0].second;
    std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  }

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
    std::vector<at::Tensor> inputs, outputs;
    inputs.reserve(spec_.inputs);
    for (const c10::IValue& value : torch::jit::last(*stack, spec_.inputs)) inputs.push_back(value.toTensor());
    torch::jit::drop(*stack, spec_.inputs);
    outputs.reserve(spec_.outputs.size());
    for (const auto& [sizes, strides] : spec_.outputs)
      outputs.push_back(at::detail::empty_strided_cpu(sizes, strides, at::kFloat));
    const Walk* walk = first_.load(std::memory_order_acquire);
    std::unique_ptr<const Walk> made;
    if (walk == nullptr || !walk->fits(inputs)) {
      made = std::make_unique<const Walk>(walk_of(inputs));
      const Walk* none = nullptr;
      walk = made.get();
      if (first_.compare_exchange_strong(none, walk, std::memory_order_release)) made.release();  // NOLINT: it stays
    }
    std::vector<char*> operands;
    operands.reserve(inputs.size() + outputs.size());
    for (const at::Tensor& input : inputs) {
      TORCH_CHECK(input.scalar_type() == at::kFloat, "a fused operator takes float32, got ", input.scalar_type());
      operands.push_back(static_cast<char*>(input.data_ptr()));
    }
    for (const at::Tensor& output : outputs) operands.push_back(static_cast<char*>(output.data_ptr()));
    const int64_t most = std::max<int64_t>(1, walk->count / kGrain);
    const int threads = static_cast<int>(std::min<int64_t>(most, omp_most_threads()));
    if (threads <= 1) {
      walk->run(loop_, operands, 0, walk->count);
    } else {
      // Whole cache lines to each thread.
      Portion portion{walk, loop_, &operands, ((walk->count + threads - 1) / threads + 15) / 16 * 16};
      omp_parallel(run_portions, &portion, threads);
    }
    for (at::Tensor& output : outputs) stack->push_back(std::move(output));
  }

 private:
  Walk walk_of(const std::vector<at::Tensor>& inputs) const {
    const size_t dims = spec_.sizes.size(), operands = inputs.size() + spec_.outputs.size();
    Walk walk;
    std::vector<std::vector<int64_t>> given(dims, std::vector<int64_t>(operands, 0));
    for (size_t k = 0; k < inputs.size(); ++k) {
      walk.given.push_back(inputs[k].sizes().vec());
      walk.given[k].insert(walk.given[k].end(), inputs[k].strides().begin(), inputs[k].strides().end());
      const at::IntArrayRef sizes = inputs[k].sizes(), strides = inputs[k].strides();
      TORCH_CHECK(sizes.size() <= dims, "a fused operator was made for other shapes than ", sizes);
      const size_t missing = dims - sizes.size();
      for (size_t d = 0; d < sizes.size(); ++d) {
        const bool fits = sizes[d] == spec_.sizes[missing + d];
        TORCH_CHECK(fits || sizes[d] == 1, "a fused operator was made for other shapes than ", sizes);
        given[missing + d][k] = fits && sizes[d] != 1 ? strides[d] : 0;
      }
    }
    for (size_t s = 0; s < spec_.outputs.size(); ++s)
      for (size_t d = 0; d < dims; ++d) given[d][inputs.size() + s] = spec_.outputs[s].second[d];
    for (size_t d : order_) {
      if (spec_.sizes[d] == 1) continue;
      walk.count *= spec_.sizes[d];
      bool joined = !walk.sizes.empty();
      for (size_t k = 0; joined && k < operands; ++k)
        joined = walk.strides.back()[k] == given[d][k] * spec_.sizes[d];
      if (joined) {
        walk.sizes.back() *= spec_.sizes[d];
        walk.strides.back() = given[d];
      } else {
        walk.sizes.push_back(spec_.sizes[d]);
        walk.strides.push_back(given[d]);
      }
    }
    if (walk.sizes.empty()) {
      walk.sizes.push_back(1);
      walk.strides.emplace_back(operands, 1);
    }
    return walk;
  }

  Loop loop_;
  FusedSpec spec_;
  std::vector<size_t> order_;  // dimensions, the one that lies widest in the first result first
  std::atomic<const Walk*> first_{nullptr};  // for the inputs that came first; others are rare
};

}  // namespace

void define_fused(const std::string& schema, const std::string& name, const std::string& path,
                  const std::string& symbol, FusedSpec spec) {
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays for the life of the process, as operators do
  if (object == nullptr) throw std::runtime_error(dlerror());
  const auto loop = reinterpret_cast<Loop>(dlsym(object, symbol.c_str()));
  if (loop == nullptr) throw std::runtime_error(path + " has no " + symbol);
  static auto* library = new torch::Library(torch::Library::FRAGMENT, "threadcast", std::nullopt, __FILE__, __LINE__);
  library->def(schema.c_str());
  library->impl(name.c_str(), torch::dispatch(c10::DispatchKey::CPU, torch::CppFunction::makeFromBoxedFunctor(
                                                  std::make_unique<Fused>(loop, std::move(spec)))));
}

}  // namespace threadcast
