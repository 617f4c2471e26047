#include "kernels/adam_rows.hpp"

#include <cassert>

#include "kernels/adam.cuh"
#include "kernels/ordered_sum.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// Columns of a row that a lane takes, and a warp.
constexpr int lane_cols = 8, tile_cols = lane_cols * warp_size;
/// Rows, or sorted positions, that a warp looks at together. It updates those that need it one after another, and warps
/// beside it the same rows' other columns: memory is fastest where whole rows come at once.
constexpr int warp_rows = 8;

__device__ int lane_index() { return static_cast<int>(threadIdx.x % warp_size); }

/// What a warp does of a table with so many rows, or sorted positions: those of a group, and of these a tile of
/// columns.
struct Task {
  int group, first_col;

  __device__ Task(int index, int cols) {
    const int tiles = ceil_div(cols, tile_cols);
    group = index / tiles, first_col = index % tiles * tile_cols;
  }
  /// Of the calling warp, where each has one.
  static __device__ Task of_warp(int cols) {
    return {static_cast<int>(blockIdx.x * block_warps + threadIdx.x / warp_size), cols};
  }
  static int count(int rows, int cols) { return ceil_div(rows, warp_rows) * ceil_div(cols, tile_cols); }
};

/// Calls body(row, value) in all lanes for each lane in which `wanted` holds, with that lane's row and value.
template <class Body>
__device__ void for_wanted(bool wanted, int row, int value, const Body& body) {
  for (unsigned lanes = __ballot_sync(0xFFFFFFFFu, wanted); lanes != 0; lanes &= lanes - 1) {
    const int lane = __ffs(static_cast<int>(lanes)) - 1;
    body(__shfl_sync(0xFFFFFFFFu, row, lane), __shfl_sync(0xFFFFFFFFu, value, lane));
  }
}

/// What catches up on updates: a table, and the rates of its updates.
template <class T, class W, class M>
struct CatchUp {
  AdamTable<T, W, M> table;
  const std::int32_t* last_read;
  const AdamRates<float>* rates;
  AdamFactors factors;
  int updates;

  __device__ int done(int row) const { return last_read[row] + 1; }

  /// A warp: updates done + 1 to `updates` of a row's columns [first_col, first_col + tile_cols).
  __device__ void apply(int row, int done, int first_col) const {
    const int col = first_col + lane_cols * lane_index();
    const std::size_t at = static_cast<std::size_t>(row) * table.w.cols + col;
    W* const w = table.w.data + at;
    M *const m = table.m.data + at, *const v = table.v.data + at;
    const bool inside = col < table.w.cols;
    AdamElements<lane_cols> elements{};
    if (inside) elements = AdamElements<lane_cols>::load(w, m, v);
    // A row that never had a gradient stays as it is.
    if (!__any_sync(0xFFFFFFFFu, any(elements.mean) || any(elements.square))) return;
    for (int t = done; t < updates; ++t) elements.update({}, factors, rates[t]);
    if (inside) elements.store(w, table.copy.data + at, m, v);
  }
};

/// Of the rows at sorted positions, each where the first of its positions is.
template <class T, class W, class M, class Index>
__global__ void __launch_bounds__(block_threads)
    catch_up_kernel(CatchUp<T, W, M> body, const Index* indices, const std::int32_t* order, int size) {
  begin_after_previous();
  const Task task = Task::of_warp(body.table.w.cols);
  const int i = task.group * warp_rows + lane_index();
  bool wanted = lane_index() < warp_rows && i < size;
  int row = 0, done = 0;
  if (wanted) {
    row = indices[order[i]];
    done = body.done(row);
    wanted = done < body.updates && (i == 0 || row != indices[order[i - 1]]);
  }
  for_wanted(wanted, row, done, [&](int r, int d) { body.apply(r, d, task.first_col); });
}

template <class T, class W, class M>
__global__ void __launch_bounds__(block_threads) catch_up_all_kernel(CatchUp<T, W, M> body) {
  begin_after_previous();
  const Task task = Task::of_warp(body.table.w.cols);
  const int row = task.group * warp_rows + lane_index();
  const int done = lane_index() < warp_rows && row < body.table.w.rows ? body.done(row) : body.updates;
  for_wanted(done < body.updates, row, done, [&](int r, int d) { body.apply(r, d, task.first_col); });
}

template <class Index>
struct NoteRows {
  std::int32_t* last_read;
  const Index* indices;
  int updates;
  template <int>
  __device__ void apply(std::size_t i) const {
    last_read[indices[i]] = updates;
  }
};

struct NoteAll {
  std::int32_t* last_read;
  int updates;
  template <int>
  __device__ void apply(std::size_t i) const {
    last_read[i] = max(last_read[i], updates - 1);
  }
};

/// The rows that a warp looks at are far apart, since frequent tokens have neighbouring ids.
template <class T, class W, class M>
__global__ void __launch_bounds__(block_threads)
    update_rows_kernel(AdamTable<T, W, M> table, Mat<float> g, const std::int32_t* last_read,
                       const AdamRates<float>* rates, AdamFactors f, int t, OrderedSum total, double* squares) {
  begin_after_previous();
  const int groups = ceil_div(table.w.rows, warp_rows), tasks = groups * ceil_div(table.w.cols, tile_cols);
  const int stride = static_cast<int>(gridDim.x) * block_warps;
  const AdamRates<float> now = rates[t - 1];
  double gradient_squares = 0, weight_squares = 0;
  for (int i = static_cast<int>(blockIdx.x * block_warps + threadIdx.x / warp_size); i < tasks; i += stride) {
    const Task task(i, table.w.cols);
    const int row = task.group + groups * lane_index(), col = task.first_col + lane_cols * lane_index();
    const bool wanted = lane_index() < warp_rows && row < table.w.rows && last_read[row] == t - 1;
    for_wanted(wanted, row, col, [&](int r, int) {
      if (col >= table.w.cols) return;
      const std::size_t at = static_cast<std::size_t>(r) * table.w.cols + col;
      W* const w = table.w.data + at;
      M *const m = table.m.data + at, *const v = table.v.data + at;
      auto elements = AdamElements<lane_cols>::load(w, m, v);
      Vector<float, lane_cols> gradient = load_vector<lane_cols>(g.data + at);
      if (f.clears_gradient) store_vector(g.data + at, Vector<float, lane_cols>{});
#pragma unroll
      for (float& x : gradient.v) {
        x *= f.gradient_scale;
        gradient_squares += static_cast<double>(x) * x;
      }
      elements.update(gradient, f, now);
#pragma unroll
      for (const float x : elements.weight.v) weight_squares += static_cast<double>(x) * x;
      elements.store(w, table.copy.data + at, m, v);
    });
  }
  total.add({gradient_squares, weight_squares}, {squares, squares + 1});
}

template <class T, class W, class M>
void require_table(const char* op, const AdamTable<T, W, M>& table) {
  const auto require = [&](const auto& x) {
    require_vectors(op, x);
    require_dense(op, x);
  };
  require(table.w), require(table.copy), require(table.m), require(table.v);
}

template <class T, class W, class M>
CatchUp<T, W, M> catch_up(const AdamTable<T, W, M>& table, Vec<const std::int32_t> last_read,
                          Vec<const AdamRates<float>> rates, const AdamOptions& options, int updates) {
  assert(last_read.size() == static_cast<std::size_t>(table.w.rows));
  assert(updates >= 0 && static_cast<std::size_t>(updates) <= rates.size());
  return {table, last_read.data(), rates.data(), AdamFactors(options), updates};
}

}  // namespace

template <class T, class W, class M, class Index>
void adam_catch_up(Stream stream, const AdamTable<T, W, M>& table, Vec<const Index> indices,
                   Vec<const std::int32_t> order, Vec<const std::int32_t> last_read,
                   Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates) {
  constexpr const char* op = "adam_catch_up";
  require_table(op, table);
  const int size = static_cast<int>(indices.size());
  if (size == 0 || table.w.cols == 0) return;
  launch(op, stream, catch_up_kernel<T, W, M, Index>, row_blocks(Task::count(size, table.w.cols)), block_threads, 0,
         catch_up(table, last_read, rates, options, updates), indices.data(), order.data(), size);
}

template <class T, class W, class M>
void adam_catch_up_all(Stream stream, const AdamTable<T, W, M>& table, Vec<const std::int32_t> last_read,
                       Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates) {
  constexpr const char* op = "adam_catch_up_all";
  require_table(op, table);
  if (table.w.size() == 0) return;
  launch(op, stream, catch_up_all_kernel<T, W, M>, row_blocks(Task::count(table.w.rows, table.w.cols)), block_threads,
         0, catch_up(table, last_read, rates, options, updates));
}

template <class Index>
void note_rows(Stream stream, Vec<std::int32_t> last_read, Vec<const Index> indices, int updates) {
  launch_elementwise<1>("note_rows", stream, indices.size(), NoteRows<Index>{last_read.data(), indices.data(), updates},
                        indices.data());
}

void note_all(Stream stream, Vec<std::int32_t> last_read, int updates) {
  launch_elementwise<1>("note_all", stream, last_read.size(), NoteAll{last_read.data(), updates}, last_read.data());
}

template <class T, class W, class M>
void adam_update_rows(Stream stream, const AdamTable<T, W, M>& table, Mat<acc_t<T>> g,
                      Vec<const std::int32_t> last_read, Vec<const AdamRates<acc_t<T>>> rates,
                      const AdamOptions& options, int t, double* squares) {
  constexpr const char* op = "adam_update_rows";
  require_table(op, table);
  require_vectors(op, g);
  require_dense(op, g);
  assert(t >= 1 && static_cast<std::size_t>(t) <= rates.size());
  if (table.w.size() == 0) return;
  const int blocks = std::min(row_blocks(Task::count(table.w.rows, table.w.cols)), 8 * sm90::sm_count);
  launch(op, stream, update_rows_kernel<T, W, M>, blocks, block_threads, 0, table, g, last_read.data(), rates.data(),
         AdamFactors(options), t, OrderedSum(stream), squares);
}

#define NANORUN_INSTANTIATE_INDEX(T, W, M, Index)                                                           \
  template void adam_catch_up(Stream, const AdamTable<T, W, M>&, Vec<const Index>, Vec<const std::int32_t>, \
                              Vec<const std::int32_t>, Vec<const AdamRates<float>>, const AdamOptions&, int);
#define NANORUN_INSTANTIATE(T, W, M)                                                                     \
  NANORUN_INSTANTIATE_INDEX(T, W, M, Token)                                                              \
  NANORUN_INSTANTIATE_INDEX(T, W, M, std::int32_t)                                                       \
  template void adam_catch_up_all(Stream, const AdamTable<T, W, M>&, Vec<const std::int32_t>,            \
                                  Vec<const AdamRates<float>>, const AdamOptions&, int);                 \
  template void adam_update_rows(Stream, const AdamTable<T, W, M>&, Mat<float>, Vec<const std::int32_t>, \
                                 Vec<const AdamRates<float>>, const AdamOptions&, int, double*);
NANORUN_INSTANTIATE(bf16, float, float)
NANORUN_INSTANTIATE(bf16, float, bf16)
NANORUN_INSTANTIATE(bf16, bf16, float)
NANORUN_INSTANTIATE(bf16, bf16, bf16)
#undef NANORUN_INSTANTIATE
#undef NANORUN_INSTANTIATE_INDEX
template void note_rows(Stream, Vec<std::int32_t>, Vec<const Token>, int);
template void note_rows(Stream, Vec<std::int32_t>, Vec<const std::int32_t>, int);

}  // namespace nanorun::kernels::cuda
