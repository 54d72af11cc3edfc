#include "pools.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "openmp.h"

// One row of results is found by the widest vectors that the CPU has.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define THREADCAST_VECTORS __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define THREADCAST_VECTORS
#endif
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define THREADCAST_SHUFFLES
#endif
#endif

namespace threadcast {
namespace {

constexpr int64_t kPooledGrain = 4096;  // numbers that a thread should compare, at least
constexpr int64_t kLanes = 16;          // windows whose numbers are compared at once

typedef float Numbers __attribute__((vector_size(4 * kLanes)));
typedef int32_t Places __attribute__((vector_size(4 * kLanes)));

struct Side {
  int64_t in = 0, out = 0, kernel = 1, stride = 1, padding = 0, dilation = 1;

  // The first place of a window that is in the image, as PyTorch's operator finds it.
  int64_t first(int64_t window) const {
    int64_t place = window * stride - padding;
    while (place < 0) place += dilation;
    return place;
  }
  // The places of so many windows, and of those before the image.
  int64_t span(int64_t windows) const {
    return std::max(in + padding, (windows - 1) * stride + (kernel - 1) * dilation + 1);
  }
};

#define THREADCAST_INLINE __attribute__((always_inline)) inline

THREADCAST_INLINE void load(const float* from, int64_t stride, Numbers& found) {
  if (stride == 1) {
    std::memcpy(&found, from, sizeof(Numbers));
#ifdef THREADCAST_SHUFFLES
  } else if (stride == 2) {
    Numbers low, high;
    std::memcpy(&low, from, sizeof(Numbers));
    std::memcpy(&high, from + kLanes, sizeof(Numbers));
    found = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
#endif
  } else {
    for (int64_t lane = 0; lane < kLanes; ++lane) found[lane] = from[lane * stride];
  }
}

// A row of results from an image with minus infinity around it. `from` is the first number of its first window, `first`
// are the columns of the windows' first places in the image.
THREADCAST_VECTORS void pool_row(const float* from, int64_t from_row, const Side& rows, const Side& columns,
                                 const int32_t* first, int64_t row, float* largest, int64_t* places) {
  const int64_t line = columns.in, stride = columns.stride;
  const auto top = static_cast<int32_t>(rows.first(row) * line);
  for (int64_t window = 0; window < columns.out; window += kLanes) {
    Numbers best;
    Places at, here;
    std::memcpy(&at, first + window, sizeof(Places));
    at = at + top;
    const int64_t begin = (row * rows.stride - rows.padding) * line + window * stride - columns.padding;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      best[lane] = -std::numeric_limits<float>::infinity();
      here[lane] = static_cast<int32_t>(begin + lane * stride);
    }
    for (int64_t i = 0; i < rows.kernel; ++i) {
      const float* numbers = from + i * rows.dilation * from_row + window * stride;
      for (int64_t j = 0; j < columns.kernel; ++j) {
        Numbers one;
        load(numbers + j * columns.dilation, stride, one);
        // NaN is taken always: of several the last one is found, as PyTorch's operator does.
        const Places takes = (one > best) | (one != one);
        best = takes ? one : best;
        at = takes ? here + static_cast<int32_t>(i * rows.dilation * line + j * columns.dilation) : at;
      }
    }
    const int64_t count = std::min(kLanes, columns.out - window);
    std::memcpy(largest + window, &best, count * sizeof(float));
    for (int64_t lane = 0; lane < count; ++lane) places[window + lane] = at[lane];
  }
}

struct Pool {
  const float* x = nullptr;
  float* largest = nullptr;
  int64_t* places = nullptr;
  int64_t planes = 0, parts = 1;
  Side rows, columns;

  void run(int64_t part) const {
    const int64_t lanes = (columns.out + kLanes - 1) / kLanes * kLanes;
    std::vector<int32_t> first(lanes);
    for (int64_t window = 0; window < columns.out; ++window)
      first[window] = static_cast<int32_t>(columns.first(window));
    const int64_t width = columns.padding + columns.span(lanes) + 2 * kLanes;
    std::vector<float> image((rows.padding + rows.span(rows.out)) * width, -std::numeric_limits<float>::infinity());
    for (int64_t plane = planes * part / parts; plane < planes * (part + 1) / parts; ++plane) {
      for (int64_t i = 0; i < rows.in; ++i)
        std::memcpy(image.data() + (rows.padding + i) * width + columns.padding, x + (plane * rows.in + i) * columns.in,
                    columns.in * sizeof(float));
      for (int64_t row = 0; row < rows.out; ++row) {
        const int64_t result = (plane * rows.out + row) * columns.out;
        pool_row(image.data() + row * rows.stride * width, width, rows, columns, first.data(), row, largest + result,
                 places + result);
      }
    }
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
  pool.parts = std::clamp<int64_t>(std::min(work / kPooledGrain, pool.planes), 1, omp_most_threads());
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
