#include "short_way.h"

#include <ATen/ATen.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace threadcast {
namespace {

Values values_of(Tensors tensors, const Values& others) {
  Values values;
  values.reserve(tensors.size() + others.size());
  for (at::Tensor& tensor : tensors) values.emplace_back(std::move(tensor));
  values.insert(values.end(), others.begin(), others.end());
  return values;
}

const void* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// Between which places of their memory two tensors lie, in bytes.
std::pair<int64_t, int64_t> span_of(const at::Tensor& tensor) {
  int64_t last = tensor.numel() == 0 ? -1 : 0;
  for (int64_t dim = 0; last >= 0 && dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  const int64_t bytes = static_cast<int64_t>(tensor.element_size()), first = tensor.storage_offset();
  return {first * bytes, (first + last + 1) * bytes};
}

bool overlap(const at::Tensor& one, const at::Tensor& other) {
  const auto [from, to] = span_of(one);
  const auto [begin, end] = span_of(other);
  return from < end && begin < to;
}

}  // namespace

Looks::Looks(const Tensors& examples) : modes_(modes()) {
  for (const at::Tensor& example : examples)
    looks_.push_back({example.key_set(), example.dtype(), example.sizes().vec(), example.strides().vec()});
}

Looks::Modes Looks::modes() {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  return {keys.included_, keys.excluded_, c10::GradMode::is_enabled(), c10::get_default_dtype()};
}

bool Looks::fits(const Look& look, const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set() == look.keys && tensor.dtype() == look.dtype &&
         tensor.sizes() == look.sizes && tensor.strides() == look.strides;
}

bool Looks::fit(const Tensors& tensors) const {
  return at::SavedTensorDefaultHooks::get_tls_state().stack.empty() && modes() == modes_ &&
         std::equal(looks_.begin(), looks_.end(), tensors.begin(), tensors.end(), fits);
}

at::Tensor Looks::arranged(const at::Tensor& gradient, size_t position) const {
  const Look& look = looks_[position];
  if (!gradient.defined() || gradient.key_set().has(c10::DispatchKey::Python) || gradient.is_nested() ||
      gradient.layout() != at::kStrided || gradient.sizes() != look.sizes || gradient.strides() == look.strides)
    return gradient;
  return at::empty_strided(look.sizes, look.strides, gradient.options()).copy_(gradient);
}

Saved::Saved(Tensors values, const Tensors& inputs, const Tensors& results, const std::vector<size_t>& written) {
  Watched watched;
  using Kept = std::pair<const void*, const at::Tensor*>;
  const auto before = [](const Kept& one, const Kept& other) { return std::less<>()(one.first, other.first); };
  std::vector<Kept> kept;
  for (const at::Tensor& value : values) kept.emplace_back(memory_of(value), &value);
  std::sort(kept.begin(), kept.end(), before);
  const auto of_memory = [&](const at::Tensor& tensor) {
    return std::equal_range(kept.begin(), kept.end(), Kept{memory_of(tensor), nullptr}, before);
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (memory_of(inputs[i]) == nullptr || std::find(written.begin(), written.end(), i) != written.end()) continue;
    const auto [first, end] = of_memory(inputs[i]);
    // Others may be in the same memory, each with a version of its own, as parameters that lie one after the other.
    if (std::any_of(first, end, [&](const Kept& one) { return overlap(*one.second, inputs[i]); }))
      watched.emplace_back(inputs[i], false);
  }
  for (const at::Tensor& result : results) {
    const auto [first, end] = of_memory(result);
    if (memory_of(result) == nullptr || first == end) continue;
    watched.emplace_back(result.detach(), false);  // has its version, but not its history, which leads back to here
    for (at::Tensor& value : values)
      if (value.is_same(result)) value = result.detach();
  }
  for (at::Tensor& value : values)
    if (value.is_view()) value = value.detach();  // of a result, it would keep that, whose history leads back to here
  values_ = std::make_shared<const Tensors>(std::move(values));
  watched_ = std::make_shared<const Watched>(std::move(watched));
}

Tensors Saved::unpack() const {
  std::shared_ptr<const Tensors> values;
  std::shared_ptr<const Watched> watched;
  {
    const std::lock_guard<std::mutex> lock(changing_);
    values = values_, watched = watched_;
  }
  TORCH_CHECK(values != nullptr, torch::autograd::ERR_BACKWARD_TWICE);
  for (const torch::autograd::SavedVariable& one : *watched) one.unpack();
  return *values;
}

std::shared_ptr<const Watched> Saved::drop() {
  std::shared_ptr<const Tensors> values;  // ends after the lock
  const std::lock_guard<std::mutex> lock(changing_);
  values_.swap(values);
  return std::exchange(watched_, nullptr);
}

bool Saved::dropped() const {
  const std::lock_guard<std::mutex> lock(changing_);
  return values_ == nullptr;
}

std::pair<Tensors, std::shared_ptr<Saved>> Forward::divided(Tensors results, const Tensors& arguments) const {
  const auto first = results.begin() + static_cast<long>(written.size());
  const auto rest = first + static_cast<long>(outputs);
  Tensors returned(first, rest), kept(rest, results.end());
  for (size_t i = 0; i < returned.size(); ++i) {
    const auto same = [&](const at::Tensor& other) { return other.is_same(returned[i]); };
    if (std::any_of(arguments.begin(), arguments.end(), same) ||
        std::any_of(returned.begin(), returned.begin() + static_cast<long>(i), same))
      returned[i] = returned[i].detach();
    // A view out of a function of autograd may not be written to.
    if (returned[i].is_view()) returned[i] = at::_unsafe_view(returned[i], returned[i].sizes());
  }
  auto saved = std::make_shared<Saved>(std::move(kept), arguments, returned, written);
  for (size_t i = 0; i < written.size(); ++i) arguments[written[i]].copy_(results[i]);
  return {std::move(returned), std::move(saved)};
}

Tensors Backward::inputs(const Saved& saved, const Tensors& given) const {
  Tensors inputs = saved.unpack();
  for (const size_t position : gradients) {
    const size_t at = inputs.size();
    inputs.push_back(looks.arranged(given.at(position), at));
  }
  return inputs;
}

std::pair<Tensors, std::shared_ptr<Saved>> run_forward(Relay& relay, const Forward& forward, const Tensors& arguments) {
  const Values found = relay.run(values_of(arguments, forward.others), forward.wanted, nullptr);
  Tensors results;
  for (const c10::IValue& value : found) results.push_back(value.toTensor());
  return forward.divided(std::move(results), arguments);
}

std::optional<Tensors> run_backward(Relay& relay, const Backward& backward, Saved& saved, const Tensors& given,
                                    bool last) {
  Tensors inputs = backward.inputs(saved, given);
  if (!backward.looks.fit(inputs)) return std::nullopt;
  std::shared_ptr<const Watched> until_the_end;
  const auto drop = [&] { until_the_end = saved.drop(); };
  std::vector<size_t> wanted;
  for (const auto& value : backward.wanted)
    if (value) wanted.push_back(*value);
  Values found = relay.run(values_of(std::move(inputs), backward.others), wanted, nullptr,
                           last ? drop : std::function<void()>());
  Tensors results;
  size_t next = 0;
  for (const auto& value : backward.wanted)
    results.push_back(value ? std::move(found[next++]).toTensor() : at::Tensor());
  for (const size_t position : backward.apart) results[position] = results[position].detach();
  return results;
}

}  // namespace threadcast
