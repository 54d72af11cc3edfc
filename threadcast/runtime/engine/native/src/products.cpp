#include "operators.h"

#include <ATen/ATen.h>
#if __has_include(<ATen/native/CPUBlas.h>)
#include <ATen/native/CPUBlas.h>
#endif
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "openmp.h"

namespace threadcast {
#ifndef CPUBLAS_BRGEMM_F32F32F32

bool define_products() { return false; }

#else
namespace {

constexpr int64_t kVector = 16;             // numbers of a vector of AVX-512
constexpr int64_t kBlockColumns = 64;       // of a block of the right factor: four vectors of AVX-512
constexpr int64_t kBlockRows = 128;         // most rows of the left one that all such blocks are multiplied by in turn
constexpr int64_t kBlockDepth = 1024;       // most products that are added up at once
constexpr int64_t kPacked = 1 << 19;        // most numbers of the right factor that are copied at once
constexpr int64_t kProductGrain = 1 << 18;  // products of two numbers that a thread should have, at least
constexpr int64_t kPackCost = 20;           // rows that are multiplied by a number in the time in which it is copied
constexpr int64_t kMostReached = (1 << 29) - 1;  // numbers in rows that a kernel reaches
constexpr int64_t kAhead = 64, kRowsAhead = 8;  // numbers of a row, or rows, by which memory is asked for ahead

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
    for (int64_t j = 0; j < whole_columns; j += 4) {
      // No CPU foresees so many rows.
      for (int64_t row = j; row < j + 4; ++row) __builtin_prefetch(from + row * from_row + first + kAhead);
      for (int64_t i = first; i < end; i += 4)
        transpose_four(from + j * from_row + i, from_row, to + i * to_row + j, to_row);
    }
  }
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j) to[i * to_row + j] = from[j * from_row + i];
}

// to[i][j] = from[i][j] for i < rows, j < columns, where both have rows of a block.
void copy_rows(const float* from, int64_t from_row, float* to, int64_t to_row, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* next = from + (i + kRowsAhead) * from_row;
    for (int64_t j = 0; j < columns; j += 16) __builtin_prefetch(next + j);
    std::memcpy(to + i * to_row, from + i * from_row, columns * sizeof(float));
  }
}

// Matrices of one operand; strides in elements.
struct Matrices {
  const float* first = nullptr;
  int64_t batch = 0, row = 0, column = 0;

  const float* at(int64_t number, int64_t i, int64_t j) const { return first + number * batch + i * row + j * column; }
  Matrices turned() const { return {first, batch, column, row}; }
};

// Numbers of a thread, which are kept: the same products come in each step.
class Scratch {
 public:
  float* of(int64_t size) {
    if (size_ < size) {
      numbers_.reset(new float[size]);
      size_ = size;
    }
    return numbers_.get();
  }

 private:
  std::unique_ptr<float[]> numbers_;
  int64_t size_ = 0;
};
thread_local Scratch left_scratch, right_scratch, result_scratch;

// The rows of `a` are read as they lie, or copied where its columns are contiguous; `b` is copied by blocks of columns.
struct Product {
  int64_t batches = 1, rows = 0, columns = 0, depth = 0;
  Matrices a, b, added;
  float* result = nullptr;
  int64_t result_batch = 0, result_row = 0;  // strides; of columns where `turned`
  bool turned = false;                       // the result is that of the transposed factors, and lies transposed
  bool adds = false;                         // to what `result` holds
  int64_t row_parts = 1, column_parts = 1;   // of each result

  int64_t parts() const { return batches * row_parts * column_parts; }
  int64_t column_blocks() const { return (columns + kBlockColumns - 1) / kBlockColumns; }

  // Multiplies the transposed factors in the other order.
  void turn() {
    std::swap(a, b);
    std::swap(rows, columns);
    a = a.turned();
    b = b.turned();
    added = added.turned();
    turned = !turned;
  }

  // What all copies and products take, in products. A copy by rows takes half as long as one that turns its block over.
  double takes() const {
    const auto height = static_cast<double>(rows), width = static_cast<double>(columns);
    const auto length = static_cast<double>(depth);
    const double copied = (a.column == 1 ? 0 : height) + width * (b.column == 1 ? 0.5 : 1);
    return kPackCost * (copied * length + (turned ? 2 * height * width : 0)) +
           height * length * static_cast<double>((columns + kVector - 1) / kVector * kVector);
  }

  // Divides each result among `threads`, such that the largest part takes least.
  void divide(int64_t threads) {
    double least = 0;
    for (int64_t across = 1; across <= threads; ++across) {
      const int64_t along = threads / across;
      const auto some_rows = static_cast<double>((rows + across - 1) / across);
      const auto some_columns =
          static_cast<double>(std::min(columns, (column_blocks() + along - 1) / along * kBlockColumns));
      const double takes = some_rows * some_columns + kPackCost * (some_columns + (a.column == 1 ? 0 : some_rows));
      if (across > 1 && takes >= least) continue;
      least = takes;
      row_parts = across;
      column_parts = along;
    }
  }

  void run(int64_t part) const {
    const int64_t batch = part / (row_parts * column_parts), inside = part % (row_parts * column_parts);
    const int64_t row_part = inside / column_parts, column_part = inside % column_parts;
    const int64_t from = column_blocks() * column_part / column_parts * kBlockColumns;
    const int64_t to = std::min(columns, column_blocks() * (column_part + 1) / column_parts * kBlockColumns);
    const int64_t top = rows * row_part / row_parts, bottom = rows * (row_part + 1) / row_parts;
    const int64_t steps = (depth + kBlockDepth - 1) / kBlockDepth, step = (depth + steps - 1) / steps;
    const int64_t width = std::max<int64_t>(1, kPacked / step / kBlockColumns) * kBlockColumns;
    for (int64_t column = from; column < to; column += width)
      for (int64_t k = 0; k < depth; k += step)
        run_columns(batch, top, bottom, column, std::min(to, column + width), k, std::min(step, depth - k));
  }

  // Adds the products of some columns of a and rows of b.
  void run_columns(int64_t batch, int64_t top, int64_t bottom, int64_t from, int64_t to, int64_t k,
                   int64_t depths) const {
    float* right = right_scratch.of((to - from + kBlockColumns - 1) / kBlockColumns * kBlockColumns * depths);
    for (int64_t column = from; column < to; column += kBlockColumns)
      pack(batch, k, column, right + (column - from) * depths, std::min(kBlockColumns, to - column), depths);
    // oneDNN's kernels reach rows by 32-bit offsets in bytes.
    const int64_t widest = std::max(a.column == 1 ? a.row : depths, turned ? kBlockColumns : result_row);
    const int64_t most = std::clamp<int64_t>(kMostReached / widest, 1, kBlockRows);
    const int64_t blocks = (bottom - top + most - 1) / most;
    for (int64_t number = 0; number < blocks; ++number) {
      const int64_t row = top + (bottom - top) * number / blocks;
      const int64_t height = top + (bottom - top) * (number + 1) / blocks - row;
      const float* left = a.at(batch, row, k);
      int64_t left_row = std::max(a.row, depths);  // of a single row, which has no next one, it may be less
      if (a.column != 1) {
        float* packed = left_scratch.of(height * depths);
        transpose(left, a.column, packed, depths, height, depths);
        left = packed;
        left_row = depths;
      }
      for (int64_t column = from; column < to; column += kBlockColumns)
        multiply_block(batch, row, column, height, std::min(kBlockColumns, to - column), left, left_row,
                       right + (column - from) * depths, k, depths);
    }
  }

  void pack(int64_t batch, int64_t k, int64_t column, float* block, int64_t width, int64_t depths) const {
    const float* from = b.at(batch, k, column);
    if (b.column == 1) copy_rows(from, b.row, block, kBlockColumns, depths, width);
    else transpose(from, b.column, block, kBlockColumns, depths, width);
  }

  void multiply_block(int64_t batch, int64_t row, int64_t column, int64_t height, int64_t width, const float* left,
                      int64_t left_row, const float* right, int64_t k, int64_t depths) const {
    float* here = result + batch * result_batch + (turned ? column * result_row + row : row * result_row + column);
    const bool has_added = k == 0 && added.first != nullptr, adding = adds || k > 0 || has_added;
    float* block = here;
    int64_t block_row = result_row;
    if (turned) {
      block = result_scratch.of(kBlockRows * kBlockColumns);
      block_row = kBlockColumns;
      if (adding && !has_added) transpose(here, result_row, block, block_row, height, width);
    }
    if (has_added) put_added(block, block_row, batch, row, height, column, width);
    at::native::cpublas::brgemm(height, width, depths, left_row, kBlockColumns, block_row, adding, left, right, block,
                                /*is_vnni=*/false);
    if (turned) transpose(block, block_row, here, result_row, width, height);
  }

  void put_added(float* to, int64_t to_row, int64_t batch, int64_t row, int64_t height, int64_t column,
                 int64_t width) const {
    for (int64_t i = 0; i < height; ++i, to += to_row) {
      const float* from = added.at(batch, row + i, column);
      if (added.column == 1) std::memcpy(to, from, width * sizeof(float));
      else for (int64_t j = 0; j < width; ++j) to[j] = from[j * added.column];
    }
  }
};

// The operand's matrices; none where neither rows nor columns are contiguous.
std::optional<Matrices> as_they_lie(const at::Tensor& operand) {
  const int64_t last = operand.dim() - 1, rows = operand.size(last - 1), columns = operand.size(last);
  Matrices found;
  found.first = operand.const_data_ptr<float>();
  found.batch = last == 2 ? operand.stride(0) : 0;
  found.row = rows == 1 ? columns : operand.stride(last - 1);
  found.column = columns == 1 ? 1 : operand.stride(last);
  if (found.column == 1 && found.row >= columns) return found;
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
  return {wide.const_data_ptr<float>(), batch, wide.stride(last - 1), wide.stride(last)};
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
  product.result_batch = product.rows * product.columns;
  product.adds = adds;
  const double as_given = product.takes();
  product.turn();
  if (product.takes() >= as_given) product.turn();
  const int64_t work = product.batches * product.rows * product.columns * product.depth;
  const int64_t threads = std::min<int64_t>(std::max<int64_t>(1, work / kProductGrain), omp_most_threads());
  product.divide((threads + product.batches - 1) / product.batches);
  omp_in_parts(product.parts(), std::min(threads, product.parts()), [&](int64_t part) { product.run(part); });
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
