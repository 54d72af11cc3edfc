#include "operators.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "openmp.h"

namespace threadcast {
namespace {

// Numbers that a thread should add, at least: a quarter of PyTorch's grain, as each is read from somewhere else.
constexpr int64_t kAddedGrain = 8192;

typedef float Four __attribute__((vector_size(16)));  // every CPU of x86-64 and of aarch64 has registers for it

// The sums of `count` times four neighbouring columns, in registers.
template <int count>
struct Columns {
  Four here = {0.0f, 0.0f, 0.0f, 0.0f};
  Columns<count - 1> next;

  __attribute__((always_inline)) void add(const float* row) {
    Four read;
    std::memcpy(&read, row, sizeof read);
    here = here + read;
    next.add(row + 4);
  }
  // A product and a sum are rounded one after the other, as in PyTorch's operators.
  __attribute__((always_inline)) void add(const float* row, const Four& scale) {
    Four read;
    std::memcpy(&read, row, sizeof read);
    const Four scaled = read * scale;
    here = here + scaled;
    next.add(row + 4, scale);
  }
  __attribute__((always_inline)) void store(float* row) const {
    std::memcpy(row, &here, sizeof here);
    next.store(row + 4);
  }
};

template <>
struct Columns<0> {
  void add(const float*) {}
  void add(const float*, const Four&) {}
  void store(float*) const {}
};

// One call of `gather_add`. A row has `heads` times `columns` numbers; those of head h are multiplied by
// scale[edge * heads + h].
struct EdgeSums {
  const float* source = nullptr;
  int64_t sources = 0;              // rows of `source`
  const int64_t* origin = nullptr;  // none: edge e reads row e
  int64_t origin_stride = 1;
  const float* scale = nullptr;  // none: as they are
  const int32_t* offsets = nullptr;
  const int32_t* order = nullptr;
  float* result = nullptr;
  int64_t rows = 0, heads = 1, columns = 0, parts = 1;
  std::atomic<bool> outside{false};  // whether an origin is outside of the source

  int64_t row_read(int64_t edge) const { return origin == nullptr ? edge : origin[edge * origin_stride]; }

  template <int count>
  void sum(int64_t row, int64_t head, int64_t column) {
    const int64_t width = heads * columns;
    Columns<count> sums;
    for (int32_t i = offsets[row]; i < offsets[row + 1]; ++i) {
      const int64_t edge = order[i];
      const float* read = source + row_read(edge) * width + column;
      if (scale == nullptr) {
        sums.add(read);
      } else {
        const float by = scale[edge * heads + head];
        sums.add(read, Four{by, by, by, by});
      }
    }
    sums.store(result + row * width + column);
  }

  void sum_one(int64_t row, int64_t head, int64_t column) {
    const int64_t width = heads * columns;
    float sum = 0.0f;
    for (int32_t i = offsets[row]; i < offsets[row + 1]; ++i) {
      const int64_t edge = order[i];
      const float read = source[row_read(edge) * width + column];
      if (scale == nullptr) {
        sum = sum + read;
      } else {
        const float scaled = read * scale[edge * heads + head];
        sum = sum + scaled;
      }
    }
    result[row * width + column] = sum;
  }

  bool reads_outside(int64_t row) const {
    if (origin == nullptr) return false;
    for (int32_t i = offsets[row]; i < offsets[row + 1]; ++i)
      if (static_cast<uint64_t>(row_read(order[i])) >= static_cast<uint64_t>(sources)) return true;
    return false;
  }

  void sum_row(int64_t row) {
    for (int64_t head = 0; head < heads; ++head) {
      int64_t column = head * columns;
      const int64_t end = column + columns;
      for (; column + 32 <= end; column += 32) sum<8>(row, head, column);
      if (column + 16 <= end) { sum<4>(row, head, column); column += 16; }
      if (column + 8 <= end) { sum<2>(row, head, column); column += 8; }
      if (column + 4 <= end) { sum<1>(row, head, column); column += 4; }
      for (; column < end; ++column) sum_one(row, head, column);
    }
  }

  // Where a part begins, such that all have about as many edges and rows together.
  int64_t first_row(int64_t part) const {
    const int64_t before = part * (offsets[rows] + rows) / parts;
    int64_t low = 0, high = rows;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (offsets[middle] + middle < before) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  void run(int64_t part) {
    const int64_t end = part + 1 == parts ? rows : first_row(part + 1);
    for (int64_t row = first_row(part); row < end; ++row) {
      if (reads_outside(row)) outside.store(true, std::memory_order_relaxed);
      if (outside.load(std::memory_order_relaxed)) return;
      sum_row(row);
    }
  }
};

// The same by PyTorch's operators, with their errors.
at::Tensor summed_plainly(const at::Tensor& source, const std::optional<at::Tensor>& origin,
                          const std::optional<at::Tensor>& scale, const at::Tensor& to, int64_t rows) {
  at::Tensor message = origin ? at::index_select(source, 0, *origin) : source;
  if (scale) message = at::mul(message, *scale);
  std::vector<int64_t> sizes = message.sizes().vec(), column(sizes.size(), 1);
  column[0] = to.numel();
  sizes[0] = rows;
  at::Tensor result = at::zeros(sizes, message.options());
  result.scatter_add_(0, to.reshape(column).expand_as(message), message);
  return result;
}

std::tuple<at::Tensor, at::Tensor> edge_order(const at::Tensor& to, int64_t rows) {
  TORCH_CHECK(to.dim() == 1 && to.scalar_type() == at::kLong, "edge_order takes int64 of one dimension");
  const int64_t edges = to.numel(), stride = to.stride(0);
  at::Tensor offsets = at::zeros({rows + 2}, at::kInt), order = at::empty({edges}, at::kInt);
  const int64_t* row = to.const_data_ptr<int64_t>();
  // First the number of edges two places behind each row, then, one place behind it, where its edges begin, and in the
  // end, at its place, the same: each edge that was put in its place has moved the beginning of the rest on.
  int32_t* counts = offsets.data_ptr<int32_t>();
  for (int64_t edge = 0; edge < edges; ++edge) {
    const int64_t at = row[edge * stride];
    if (static_cast<uint64_t>(at) >= static_cast<uint64_t>(rows)) return {offsets, at::empty({0}, at::kInt)};
    ++counts[at + 2];
  }
  for (int64_t place = 2; place < rows + 2; ++place) counts[place] += counts[place - 1];
  int32_t* placed = order.data_ptr<int32_t>();
  for (int64_t edge = 0; edge < edges; ++edge) placed[counts[row[edge * stride] + 1]++] = static_cast<int32_t>(edge);
  return {offsets, order};
}

at::Tensor gather_add(const at::Tensor& source, const std::optional<at::Tensor>& origin,
                      const std::optional<at::Tensor>& scale, const at::Tensor& to, const at::Tensor& offsets,
                      const at::Tensor& order, int64_t rows) {
  const int64_t edges = to.numel(), read = origin ? origin->numel() : source.dim() > 0 ? source.size(0) : 0;
  TORCH_CHECK(source.dim() > 0 && source.scalar_type() == at::kFloat && read == edges && offsets.numel() == rows + 2,
              "gather_add was made for other tensors than ", source.sizes(), " of ", source.scalar_type());
  if (edges == 0 || order.numel() != edges) return summed_plainly(source, origin, scale, to, rows);
  const at::Tensor whole = source.contiguous();
  const at::Tensor factors = scale ? scale->contiguous() : at::Tensor();
  std::vector<int64_t> sizes = source.sizes().vec();
  sizes[0] = rows;
  at::Tensor result = at::empty(sizes, source.options());
  EdgeSums sums;
  sums.source = whole.const_data_ptr<float>();
  sums.sources = source.size(0);
  if (origin) {
    sums.origin = origin->const_data_ptr<int64_t>();
    sums.origin_stride = origin->stride(0);
  }
  if (scale) {
    sums.scale = factors.const_data_ptr<float>();
    sums.heads = factors.numel() / edges;
  }
  int64_t width = 1;
  for (size_t side = 1; side < sizes.size(); ++side) width *= sizes[side];
  TORCH_CHECK(sums.heads > 0 && width % sums.heads == 0, "gather_add cannot divide rows of ", width, " numbers among ",
              sums.heads, " heads");
  sums.columns = width / sums.heads;
  sums.offsets = offsets.const_data_ptr<int32_t>();
  sums.order = order.const_data_ptr<int32_t>();
  sums.result = result.data_ptr<float>();
  sums.rows = rows;
  const int64_t most = std::max<int64_t>(1, edges * width / kAddedGrain);
  sums.parts = std::min<int64_t>({most, std::max<int64_t>(1, rows), omp_most_threads()});
  omp_in_parts(sums.parts, sums.parts, [&](int64_t part) { sums.run(part); });
  return sums.outside.load() ? summed_plainly(source, origin, scale, to, rows) : result;
}

}  // namespace

void define_aggregation() {
  if (c10::Dispatcher::singleton().findSchema({"threadcast::gather_add", ""})) return;
  static auto* library = new torch::Library(torch::Library::FRAGMENT, "threadcast", std::nullopt, __FILE__, __LINE__);
  library->def("edge_order(Tensor to, int rows) -> (Tensor, Tensor)");
  library->def("gather_add(Tensor source, Tensor? origin, Tensor? scale, Tensor to, Tensor offsets, Tensor order, "
               "int rows) -> Tensor");
  library->impl("edge_order", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(edge_order)));
  library->impl("gather_add", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(gather_add)));
}

}  // namespace threadcast
