#include "pools.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
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
// NaN the last one is found.
THREADCAST_VECTORS void take_larger(const float* from, int32_t number, int64_t count, float* largest,
                                    int32_t* numbers) {
  for (int64_t i = 0; i < count; ++i) {
    const float one = from[i], before = largest[i];
    const bool takes = (one > before) | (one != one);
    largest[i] = takes ? one : before;
    numbers[i] = takes ? number : numbers[i];
  }
}

THREADCAST_VECTORS void copy_every_second(const float* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[2 * i];
}

void copy_apart(const float* from, int64_t stride, int64_t count, float* to) {
  if (stride == 1) std::memcpy(to, from, count * sizeof(float));
  else if (stride == 2) copy_every_second(from, count, to);
  else for (int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
}

struct Side {
  int64_t in = 0, out = 0, kernel = 1, stride = 1, padding = 0, dilation = 1;

  // The first place of a window that is in the image, as PyTorch's operator finds it.
  int64_t first(int64_t window) const {
    int64_t place = window * stride - padding;
    while (place < 0) place += dilation;
    return place;
  }
  // The places of all windows, from the first one's beginning on, and those of them that are a stride apart.
  int64_t span() const { return (out - 1) * stride + (kernel - 1) * dilation + 1; }
  int64_t apart() const { return (span() + stride - 1) / stride; }
};

// Every image is copied into images of its places that are a stride apart, with minus infinity around them. There the
// numbers at one place of all windows lie beside each other.
class PooledImage {
 public:
  PooledImage(const Side& rows, const Side& columns)
      : rows_(rows), columns_(columns), width_(columns.apart()), size_(rows.apart() * width_),
        images_(rows.stride * columns.stride * size_, -std::numeric_limits<float>::infinity()),
        largest_((rows.out - 1) * width_ + columns.out), numbers_(largest_.size()) {
    for (int64_t i = 0; i < rows.kernel; ++i)
      for (int64_t j = 0; j < columns.kernel; ++j)
        offsets_.push_back(i * rows.dilation * columns.in + j * columns.dilation);
  }

  void copy(const float* image) {
    const int64_t end = std::min(columns_.in + columns_.padding, columns_.span());
    for (int64_t row = rows_.padding; row < std::min(rows_.in + rows_.padding, rows_.span()); ++row) {
      for (int64_t phase = 0; phase < columns_.stride; ++phase) {
        const int64_t stride = columns_.stride, behind = (phase - columns_.padding % stride + stride) % stride;
        const int64_t first = columns_.padding + behind;
        if (first >= end) continue;
        copy_apart(image + (row - rows_.padding) * columns_.in + behind, stride, (end - first + stride - 1) / stride,
                   at(row, first));
      }
    }
  }

  void pool(float* largest, int64_t* places) {
    std::fill(largest_.begin(), largest_.end(), -std::numeric_limits<float>::infinity());
    std::fill(numbers_.begin(), numbers_.end(), -1);
    for (int64_t i = 0; i < rows_.kernel; ++i)
      for (int64_t j = 0; j < columns_.kernel; ++j)
        take_larger(at(i * rows_.dilation, j * columns_.dilation), static_cast<int32_t>(i * columns_.kernel + j),
                    static_cast<int64_t>(largest_.size()), largest_.data(), numbers_.data());
    for (int64_t row = 0; row < rows_.out; ++row, largest += columns_.out, places += columns_.out) {
      std::memcpy(largest, largest_.data() + row * width_, columns_.out * sizeof(float));
      const int32_t* numbers = numbers_.data() + row * width_;
      int64_t begin = (row * rows_.stride - rows_.padding) * columns_.in - columns_.padding;
      for (int64_t column = 0; column < columns_.out; ++column, begin += columns_.stride)
        places[column] = numbers[column] >= 0 ? begin + offsets_[numbers[column]]
                                              : rows_.first(row) * columns_.in + columns_.first(column);
    }
  }

 private:
  // Where a place is, counted from the beginning of the first window.
  float* at(int64_t row, int64_t column) {
    const int64_t image = row % rows_.stride * columns_.stride + column % columns_.stride;
    return images_.data() + image * size_ + row / rows_.stride * width_ + column / columns_.stride;
  }

  Side rows_, columns_;
  int64_t width_, size_;
  std::vector<float> images_, largest_;
  std::vector<int32_t> numbers_;  // of the window, counted by rows; -1 where none was taken
  std::vector<int64_t> offsets_;  // of each number in the image, from where the window begins
};

struct Pool {
  const float* x = nullptr;
  float* largest = nullptr;
  int64_t* places = nullptr;
  int64_t planes = 0, parts = 1;
  Side rows, columns;

  void run(int64_t part) const {
    PooledImage image(rows, columns);
    for (int64_t plane = planes * part / parts; plane < planes * (part + 1) / parts; ++plane) {
      image.copy(x + plane * rows.in * columns.in);
      image.pool(largest + plane * rows.out * columns.out, places + plane * rows.out * columns.out);
    }
  }
};

Side side(const at::Tensor& x, int64_t which, at::IntArrayRef size, at::IntArrayRef kernel, at::IntArrayRef stride,
          at::IntArrayRef padding, at::IntArrayRef dilation) {
  return {x.size(which - 2), size[which], kernel[which], stride[which], padding[which], dilation[which]};
}

std::tuple<at::Tensor, at::Tensor> max_pool(const at::Tensor& x, at::IntArrayRef size, at::IntArrayRef kernel,
                                            at::IntArrayRef stride, at::IntArrayRef padding,
                                            at::IntArrayRef dilation) {
  TORCH_CHECK(x.dim() >= 2 && x.scalar_type() == at::kFloat, "max_pool takes float32 (..., height, width), not ",
              x.sizes(), " of ", x.scalar_type());
  for (const at::IntArrayRef sides : {size, kernel, stride, padding, dilation})
    TORCH_CHECK(sides.size() == 2, "max_pool takes a number for each of two sides, not ", sides);
  for (const size_t which : {0, 1})
    TORCH_CHECK(size[which] >= 0 && kernel[which] > 0 && stride[which] > 0 && padding[which] >= 0 &&
                    dilation[which] > 0,
                "max_pool has no such windows: ", kernel, ", ", stride, " apart, ", dilation, " dilated, ", padding,
                " outside");
  const at::Tensor whole = x.contiguous();
  std::vector<int64_t> sizes = whole.sizes().vec();
  std::copy(size.begin(), size.end(), sizes.end() - 2);
  at::Tensor largest = at::empty(sizes, whole.options()), places = at::empty(sizes, whole.options().dtype(at::kLong));
  Pool pool;
  pool.rows = side(whole, 0, size, kernel, stride, padding, dilation);
  pool.columns = side(whole, 1, size, kernel, stride, padding, dilation);
  if (largest.numel() == 0) return {largest, places};
  pool.x = whole.const_data_ptr<float>();
  pool.largest = largest.data_ptr<float>();
  pool.places = places.data_ptr<int64_t>();
  pool.planes = largest.numel() / (pool.rows.out * pool.columns.out);
  const int64_t work = largest.numel() * kernel[0] * kernel[1];
  pool.parts = std::clamp<int64_t>(std::min(work / kPooledGrain, pool.planes), 1, omp_most_threads());
  omp_in_parts(pool.parts, pool.parts, [&](int64_t part) { pool.run(part); });
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
