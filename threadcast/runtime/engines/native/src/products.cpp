#include "products.h"

#include <ATen/ATen.h>
#if __has_include(<ATen/native/CPUBlas.h>)
#include <ATen/native/CPUBlas.h>
#endif
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>

#include "openmp.h"

namespace threadcast {
#ifndef CPUBLAS_BRGEMM_F32F32F32

bool define_products() { return false; }

#else
namespace {

constexpr int64_t kBlockColumns = 64;     // of a block of b: four vectors of AVX-512
constexpr int64_t kBlockDepth = 1024;     // most rows of a block of b, which then takes 256 KiB of the second cache
constexpr int64_t kPacked = 1 << 18;      // most numbers of a that are packed at once
constexpr int64_t kProductGrain = 1 << 18;  // products of two numbers that a thread should have, at least
constexpr int64_t kPackCost = 34;         // rows (or columns) that are multiplied in the time in which one is packed

typedef float Four __attribute__((vector_size(16)));  // every CPU of x86-64 and of aarch64 has registers for it

// Four rows of four numbers, transposed.
__attribute__((always_inline)) inline void transpose_four(const float* from, int64_t from_row, float* to,
                                                           int64_t to_row) {
  Four rows[4];
  for (int i = 0; i < 4; ++i) std::memcpy(&rows[i], from + i * from_row, sizeof(Four));
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
  const Four low = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const Four low_next = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const Four high = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const Four high_next = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  const Four columns[4] = {
      __builtin_shufflevector(low, low_next, 0, 1, 4, 5), __builtin_shufflevector(low, low_next, 2, 3, 6, 7),
      __builtin_shufflevector(high, high_next, 0, 1, 4, 5), __builtin_shufflevector(high, high_next, 2, 3, 6, 7)};
#else
  Four columns[4];
  for (int i = 0; i < 4; ++i) columns[i] = Four{rows[0][i], rows[1][i], rows[2][i], rows[3][i]};
#endif
  for (int i = 0; i < 4; ++i) std::memcpy(to + i * to_row, &columns[i], sizeof(Four));
}

// to[i][j] = from[j][i] for i < rows, j < columns.
void transpose(const float* from, int64_t from_row, float* to, int64_t to_row, int64_t rows, int64_t columns) {
  constexpr int64_t line = 16;  // numbers of a cache line, read once
  const int64_t whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
  for (int64_t first = 0; first < whole_rows; first += line) {
    const int64_t end = std::min(whole_rows, first + line);
    for (int64_t j = 0; j < whole_columns; j += 4)
      for (int64_t i = first; i < end; i += 4)
        transpose_four(from + j * from_row + i, from_row, to + i * to_row + j, to_row);
  }
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j) to[i * to_row + j] = from[j * from_row + i];
}

// Numbers of a thread, which are kept: the same products come in each step.
float* scratch(std::unique_ptr<float[]>& kept, int64_t& size, int64_t wanted) {
  if (size < wanted) {
    kept.reset(new float[wanted]);
    size = wanted;
  }
  return kept.get();
}

struct Scratch {
  std::unique_ptr<float[]> a, b;
  int64_t a_size = 0, b_size = 0;
};
thread_local Scratch scratches;

// Matrices of one operand; strides in elements.
struct Matrices {
  const float* first = nullptr;
  int64_t batch = 0, row = 0, column = 0;
  bool transposed = false;  // its columns are contiguous, not its rows

  const float* at(int64_t number, int64_t i, int64_t j) const { return first + number * batch + i * row + j * column; }
};

struct Product {
  int64_t batches = 1, rows = 0, columns = 0, depth = 0;
  Matrices a, b, added;
  float* result = nullptr;
  int64_t result_row = 0;
  bool adds = false;  // to what `result` holds
  int64_t row_parts = 1, column_parts = 1;  // of each result
  std::atomic<bool> failed{false};
  std::exception_ptr error;

  int64_t parts() const { return batches * row_parts * column_parts; }

  // Divides each result among `threads`, such that the largest part takes least.
  void divide(int64_t threads) {
    double least = 0;
    for (int64_t across = 1; across <= threads; ++across) {
      const int64_t along = threads / across;
      const int64_t some_rows = (rows + across - 1) / across, blocks = (columns + kBlockColumns - 1) / kBlockColumns;
      const int64_t some_columns = std::min(columns, (blocks + along - 1) / along * kBlockColumns);
      const double takes = static_cast<double>(some_rows) * some_columns + kPackCost * some_columns +
                           (a.transposed ? kPackCost * some_rows : 0);
      if (across > 1 && takes >= least) continue;
      least = takes;
      row_parts = across;
      column_parts = along;
    }
  }

  void run(int64_t part) {
    const int64_t batch = part / (row_parts * column_parts), inside = part % (row_parts * column_parts);
    const int64_t row_part = inside / column_parts, column_part = inside % column_parts;
    const int64_t blocks = (columns + kBlockColumns - 1) / kBlockColumns;
    const int64_t from = blocks * column_part / column_parts * kBlockColumns;
    const int64_t to = std::min(columns, blocks * (column_part + 1) / column_parts * kBlockColumns);
    const int64_t top = rows * row_part / row_parts, bottom = rows * (row_part + 1) / row_parts;
    if (from >= to || top >= bottom) return;
    const int64_t steps = (depth + kBlockDepth - 1) / kBlockDepth, step = (depth + steps - 1) / steps;
    const int64_t most = a.transposed ? std::max<int64_t>(kBlockColumns, kPacked / step) : bottom - top;
    for (int64_t row = top; row < bottom; row += most)
      for (int64_t k = 0; k < depth; k += step)
        run_rows(batch, row, std::min(most, bottom - row), from, to, k, std::min(step, depth - k));
  }

  // Adds the products of `depths` columns of a and rows of b to a part of a result.
  void run_rows(int64_t batch, int64_t row, int64_t height, int64_t from, int64_t to, int64_t k, int64_t depths) {
    const float* left = a.at(batch, row, k);
    int64_t left_row = a.row;
    if (a.transposed) {
      float* packed = scratch(scratches.a, scratches.a_size, height * depths);
      transpose(left, a.column, packed, depths, height, depths);
      left = packed;
      left_row = depths;
    }
    float* right = scratch(scratches.b, scratches.b_size, depths * kBlockColumns);
    for (int64_t column = from; column < to; column += kBlockColumns) {
      const int64_t width = std::min(kBlockColumns, to - column);
      const float* block = b.at(batch, k, column);
      if (b.transposed) {
        transpose(block, b.column, right, kBlockColumns, depths, width);
      } else {
        for (int64_t i = 0; i < depths; ++i)
          std::memcpy(right + i * kBlockColumns, block + i * b.row, width * sizeof(float));
      }
      float* here = result + batch * rows * result_row + row * result_row + column;
      if (k == 0 && added.first != nullptr) put_added(here, batch, row, height, column, width);
      const bool adding = adds || k > 0 || added.first != nullptr;
      at::native::cpublas::brgemm(height, width, depths, left_row, kBlockColumns, result_row, adding, left, right, here,
                                  /*is_vnni=*/false);
    }
  }

  void put_added(float* here, int64_t batch, int64_t row, int64_t height, int64_t column, int64_t width) const {
    for (int64_t i = 0; i < height; ++i) {
      const float* from = added.at(batch, row + i, column);
      float* to = here + i * result_row;
      if (added.column == 1) std::memcpy(to, from, width * sizeof(float));
      else for (int64_t j = 0; j < width; ++j) to[j] = from[j * added.column];
    }
  }
};

void run_product_parts(void* data) {
  auto& product = *static_cast<Product*>(data);
  // A team may be smaller than it was asked to be.
  for (int64_t part = omp_rank(); part < product.parts(); part += omp_team()) {
    try {
      product.run(part);
    } catch (...) {
      if (!product.failed.exchange(true)) product.error = std::current_exception();
      return;
    }
  }
}

// The operand's matrices; none where neither rows nor columns are contiguous.
std::optional<Matrices> as_they_lie(const at::Tensor& operand) {
  const int64_t last = operand.dim() - 1, rows = operand.size(last - 1), columns = operand.size(last);
  Matrices found;
  found.first = operand.const_data_ptr<float>();
  found.batch = last == 2 ? operand.stride(0) : 0;
  found.row = rows == 1 ? columns : operand.stride(last - 1);
  found.column = columns == 1 ? 1 : operand.stride(last);
  if (found.column == 1 && found.row >= columns) return found;
  found.transposed = true;
  if (found.row == 1 && found.column >= rows) return found;
  return std::nullopt;
}

// The same, of a copy where there are none; `copy` holds it.
Matrices matrices(const at::Tensor& operand, at::Tensor& copy) {
  if (const auto found = as_they_lie(operand)) return *found;
  copy = operand.contiguous();
  return *as_they_lie(copy);
}

Matrices broadcast(const at::Tensor& added, at::IntArrayRef sizes) {
  const at::Tensor wide = added.expand(sizes);
  const int64_t last = wide.dim() - 1;
  const int64_t batch = last == 2 ? wide.stride(0) : 0;
  return {wide.const_data_ptr<float>(), batch, wide.stride(last - 1), wide.stride(last), false};
}

void check_factors(const at::Tensor& a, const at::Tensor& b) {
  const bool fits = a.dim() == b.dim() && (a.dim() == 2 || a.dim() == 3) && a.size(-1) == b.size(-2) &&
                    (a.dim() == 2 || a.size(0) == b.size(0));
  TORCH_CHECK(fits && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat,
              "product takes matrices of float32 that fit, not ", a.sizes(), " of ", a.scalar_type(), " and ",
              b.sizes(), " of ", b.scalar_type());
}

// Writes to, or with `adds` adds to, `result`, which is contiguous.
void multiply(const at::Tensor& result, const std::optional<at::Tensor>& added, const at::Tensor& a,
              const at::Tensor& b, bool adds) {
  at::Tensor left, right;
  Product product;
  product.a = matrices(a, left);
  product.b = matrices(b, right);
  if (added) product.added = broadcast(*added, result.sizes());
  product.batches = a.dim() == 3 ? a.size(0) : 1;
  product.rows = a.size(-2);
  product.depth = a.size(-1);
  product.columns = b.size(-1);
  product.result = result.data_ptr<float>();
  product.result_row = product.columns;
  product.adds = adds;
  const int64_t work = product.batches * product.rows * product.columns * product.depth;
  const int64_t threads = std::min<int64_t>(std::max<int64_t>(1, work / kProductGrain), omp_most_threads());
  product.divide((threads + product.batches - 1) / product.batches);
  const auto team = static_cast<unsigned>(std::min<int64_t>(threads, product.parts()));
  if (team > 1) {
    omp_parallel(run_product_parts, &product, team);
    if (product.failed.load()) std::rethrow_exception(product.error);
  } else {
    for (int64_t part = 0; part < product.parts(); ++part) product.run(part);
  }
}

at::Tensor product(const std::optional<at::Tensor>& added, const at::Tensor& a, const at::Tensor& b) {
  check_factors(a, b);
  std::vector<int64_t> sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  const at::Tensor result = at::empty(sizes, a.options());
  if (result.numel() == 0) return result;
  if (a.size(-1) == 0) return added ? result.copy_(added->expand(sizes)) : result.zero_();
  TORCH_CHECK(!added || added->scalar_type() == at::kFloat, "product adds float32, not ", added->scalar_type());
  multiply(result, added, a, b, false);
  return result;
}

at::Tensor& product_(at::Tensor& total, const at::Tensor& a, const at::Tensor& b) {
  check_factors(a, b);
  TORCH_CHECK(total.scalar_type() == at::kFloat && total.dim() == a.dim() && total.size(-2) == a.size(-2) &&
                  total.size(-1) == b.size(-1) && (a.dim() == 2 || total.size(0) == a.size(0)),
              "product_ was given a total of other sizes: ", total.sizes());
  if (total.numel() == 0 || a.size(-1) == 0) return total;
  if (total.is_contiguous()) multiply(total, std::nullopt, a, b, true);
  else total.add_(product(std::nullopt, a, b));
  return total;
}

}  // namespace

bool define_products() {
  if (c10::Dispatcher::singleton().findSchema({"threadcast::product", ""})) return true;
  static auto* library = new torch::Library(torch::Library::FRAGMENT, "threadcast", std::nullopt, __FILE__, __LINE__);
  library->def("product(Tensor? added, Tensor a, Tensor b) -> Tensor");
  library->def("product_(Tensor(a!) total, Tensor a, Tensor b) -> Tensor(a!)");
  library->impl("product", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(product)));
  library->impl("product_", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(product_)));
  return true;
}

#endif

}  // namespace threadcast
