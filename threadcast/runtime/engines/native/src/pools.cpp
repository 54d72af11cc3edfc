#include "pools.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "openmp.h"

// A loop that the compiler makes of the widest vectors that the CPU has.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define THREADCAST_VECTORS __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define THREADCAST_VECTORS
#endif

namespace threadcast {
namespace {

constexpr int64_t kPooledGrain = 4096;  // numbers that a thread should compare, at least

// Takes numbers that are larger than the largest before them, and NaN always, as PyTorch's operator does: of several
// NaN the last one is found. `place` is that of the first number.
THREADCAST_VECTORS void take_each(const float* from, int32_t place, int64_t count, float* largest, int32_t* places) {
  for (int64_t i = 0; i < count; ++i) {
    const float one = from[i], before = largest[i];
    const bool takes = (one > before) | (one != one);
    largest[i] = takes ? one : before;
    places[i] = takes ? place + static_cast<int32_t>(i) : places[i];
  }
}

THREADCAST_VECTORS void take_second(const float* from, int32_t place, int64_t count, float* largest, int32_t* places) {
  for (int64_t i = 0; i < count; ++i) {
    const float one = from[2 * i], before = largest[i];
    const bool takes = (one > before) | (one != one);
    largest[i] = takes ? one : before;
    places[i] = takes ? place + 2 * static_cast<int32_t>(i) : places[i];
  }
}

void take_apart(const float* from, int32_t place, int64_t count, int64_t stride, float* largest, int32_t* places) {
  for (int64_t i = 0; i < count; ++i) {
    const float one = from[i * stride], before = largest[i];
    if ((one > before) | (one != one)) {
      largest[i] = one;
      places[i] = place + static_cast<int32_t>(i * stride);
    }
  }
}

struct Side {
  int64_t in = 0, out = 0, kernel = 1, stride = 1, padding = 0, dilation = 1;

  // The first place of a window that is in the image, as PyTorch's operator finds it.
  int64_t first(int64_t window) const {
    int64_t place = window * stride - padding;
    while (place < 0) place += dilation;
    return place;
  }
};

struct Pool {
  const float* x = nullptr;
  float* largest = nullptr;
  int64_t* places = nullptr;
  int64_t planes = 0, parts = 1;
  Side rows, columns;

  void run(int64_t part) const {
    std::vector<int32_t> places_of_row(columns.out);
    const int64_t count = planes * rows.out;
    for (int64_t number = count * part / parts; number < count * (part + 1) / parts; ++number)
      pool_row(number / rows.out, number % rows.out, places_of_row.data());
  }

  void pool_row(int64_t plane, int64_t row, int32_t* at) const {
    const float* image = x + plane * rows.in * columns.in;
    float* found = largest + (plane * rows.out + row) * columns.out;
    const int64_t top = rows.first(row);
    const int64_t bottom = std::min(row * rows.stride - rows.padding + (rows.kernel - 1) * rows.dilation + 1, rows.in);
    for (int64_t window = 0; window < columns.out; ++window) {
      found[window] = -std::numeric_limits<float>::infinity();
      at[window] = static_cast<int32_t>(top * columns.in + columns.first(window));
    }
    for (int64_t line = top; line < bottom; line += rows.dilation)
      for (int64_t k = 0; k < columns.kernel; ++k) take(image, line, k * columns.dilation - columns.padding, found, at);
    int64_t* result = places + (plane * rows.out + row) * columns.out;
    for (int64_t window = 0; window < columns.out; ++window) result[window] = at[window];
  }

  // Takes, for each window, the number that lies `shift` behind its first one in a line, where that is in the image.
  void take(const float* image, int64_t line, int64_t shift, float* found, int32_t* at) const {
    const int64_t stride = columns.stride, last = columns.in - 1 - shift;
    const int64_t begin = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
    const int64_t end = last < 0 ? 0 : std::min(columns.out, last / stride + 1);
    if (begin >= end) return;
    const int64_t place = line * columns.in + begin * stride + shift;
    const float* from = image + place;
    const auto first = static_cast<int32_t>(place);
    if (stride == 1) take_each(from, first, end - begin, found + begin, at + begin);
    else if (stride == 2) take_second(from, first, end - begin, found + begin, at + begin);
    else take_apart(from, first, end - begin, stride, found + begin, at + begin);
  }
};

void run_pool_parts(void* data) {
  const auto& pool = *static_cast<const Pool*>(data);
  // A team may be smaller than it was asked to be.
  for (int64_t part = omp_rank(); part < pool.parts; part += omp_team()) pool.run(part);
}

Side side(const at::Tensor& x, int64_t which, at::IntArrayRef size, at::IntArrayRef kernel, at::IntArrayRef stride,
          at::IntArrayRef padding, at::IntArrayRef dilation) {
  return {x.size(which - 2), size[which], kernel[which], stride[which], padding[which], dilation[which]};
}

std::tuple<at::Tensor, at::Tensor> max_pool(const at::Tensor& x, at::IntArrayRef size, at::IntArrayRef kernel,
                                            at::IntArrayRef stride, at::IntArrayRef padding,
                                            at::IntArrayRef dilation) {
  TORCH_CHECK(x.dim() >= 2 && x.scalar_type() == at::kFloat && x.is_contiguous() &&
                  x.size(-2) * x.size(-1) <= std::numeric_limits<int32_t>::max(),
              "max_pool takes contiguous float32 (..., height, width), not ", x.sizes(), " of ", x.scalar_type());
  std::vector<int64_t> sizes = x.sizes().vec();
  std::copy(size.begin(), size.end(), sizes.end() - 2);
  at::Tensor largest = at::empty(sizes, x.options()), places = at::empty(sizes, x.options().dtype(at::kLong));
  Pool pool;
  pool.rows = side(x, 0, size, kernel, stride, padding, dilation);
  pool.columns = side(x, 1, size, kernel, stride, padding, dilation);
  if (largest.numel() == 0) return {largest, places};
  pool.x = x.const_data_ptr<float>();
  pool.largest = largest.data_ptr<float>();
  pool.places = places.data_ptr<int64_t>();
  pool.planes = largest.numel() / (pool.rows.out * pool.columns.out);
  const int64_t work = largest.numel() * kernel[0] * kernel[1];
  pool.parts = std::clamp<int64_t>(work / kPooledGrain, 1, omp_most_threads());
  if (pool.parts > 1) omp_parallel(run_pool_parts, &pool, static_cast<unsigned>(pool.parts));
  else pool.run(0);
  return {largest, places};
}

}  // namespace

void define_pools() {
  if (c10::Dispatcher::singleton().findSchema({"threadcast::max_pool", ""})) return;
  static auto* library = new torch::Library(torch::Library::FRAGMENT, "threadcast", std::nullopt, __FILE__, __LINE__);
  library->def("max_pool(Tensor x, int[2] size, int[2] kernel, int[2] stride, int[2] padding, int[2] dilation) -> "
               "(Tensor, Tensor)");
  library->impl("max_pool", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(max_pool)));
}

}  // namespace threadcast
