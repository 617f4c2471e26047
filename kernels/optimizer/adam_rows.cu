#include "kernels/optimizer/adam_rows.hpp"

#include <cassert>

#include "kernels/device/fill.hpp"
#include "kernels/device/ordered_sum.cuh"
#include "kernels/optimizer/adam.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// Columns of a row that a lane takes: of an update a vector of 16 bytes; few where a row catches up on many updates,
/// which follow one another.
constexpr int update_cols = 8, catch_up_cols = 2;
/// Rows that a warp looks at together. It updates the rows that need it one after another, while the warps beside it
/// update the other columns of the same rows: memory is fastest if whole rows are accessed at once.
constexpr int warp_rows = 8;
/// Blocks of a grid-stride loop over tasks.
int most_blocks() { return 8 * sm_count(); }

__device__ int lane_index() { return static_cast<int>(threadIdx.x % warp_size); }
__device__ int warp_index() { return static_cast<int>(blockIdx.x * block_warps + threadIdx.x / warp_size); }
__device__ int warp_stride() { return static_cast<int>(gridDim.x) * block_warps; }

/// Tiles of columns, `lane_cols` of them for each lane of a warp.
__host__ __device__ constexpr int col_tiles(int cols, int lane_cols) { return ceil_div(cols, lane_cols * warp_size); }

/// Task of a warp: a tile of item i, which is a row or a group of rows.
struct Task {
  int item, first_col;

  __device__ Task(int index, int cols, int lane_cols)
      : item(index / col_tiles(cols, lane_cols)),
        first_col(index % col_tiles(cols, lane_cols) * lane_cols * warp_size) {}
};

/// Calls body(row, value) in all lanes for each lane in which `wanted` holds, with that lane's row and value.
template <class Body>
__device__ void for_wanted(bool wanted, int row, int value, const Body& body) {
  for (unsigned lanes = __ballot_sync(0xFFFFFFFFu, wanted); lanes != 0; lanes &= lanes - 1) {
    const int lane = __ffs(static_cast<int>(lanes)) - 1;
    body(__shfl_sync(0xFFFFFFFFu, row, lane), __shfl_sync(0xFFFFFFFFu, value, lane));
  }
}

/// A table that catches up on updates, and their rates.
template <class T, class W, class M>
struct CatchUp {
  AdamTable<T, W, M> table;
  const AdamRates<float>* rates;
  AdamFactors<float> factors;
  int updates;

  /// A warp: updates done + 1 to `updates` of a row's columns from first_col on.
  __device__ void apply(int row, int done, int first_col) const {
    const int col = first_col + catch_up_cols * lane_index();
    const std::size_t at = static_cast<std::size_t>(row) * table.w.cols + col;
    W* const w = table.w.data + at;
    M *const m = table.m.data + at, *const v = table.v.data + at;
    const bool inside = col < table.w.cols;
    AdamElements<catch_up_cols> elements{};
    if (inside) elements = AdamElements<catch_up_cols>::load(w, m, v);
    // A row that never had a gradient stays as it is.
    if (!__any_sync(0xFFFFFFFFu, any(elements.mean) || any(elements.square))) return;
    for (int t = done; t < updates; ++t) elements.update({}, factors, rates[t]);
    if (inside) elements.store(w, table.copy.data + at, m, v);
  }
};

/// A thread for each sorted position; the first of a row's lists it.
template <class Index>
__global__ void __launch_bounds__(block_threads)
    list_rows_kernel(RowList list, std::int32_t* last_read, const Index* indices, const std::int32_t* order, int size,
                     int updates) {
  begin_after_previous();
  const int i = static_cast<int>(blockIdx.x * block_threads + threadIdx.x);
  int row = 0, done = updates;
  if (i < size) {
    row = indices[order[i]];
    if (i == 0 || row != indices[order[i - 1]]) {
      done = last_read[row] + 1;
      last_read[row] = updates;
    }
  }
  const bool lacks = done < updates;
  const unsigned lanes = __ballot_sync(0xFFFFFFFFu, lacks);
  int first = 0;
  if (lane_index() == 0 && lanes != 0) first = atomicAdd(list.count, __popc(lanes));
  first = __shfl_sync(0xFFFFFFFFu, first, 0);
  if (!lacks) return;
  const int at = first + __popc(lanes & ((1u << lane_index()) - 1));
  list.rows[at] = row;
  list.done[at] = done;
}

template <class T, class W, class M>
__global__ void __launch_bounds__(block_threads) catch_up_kernel(CatchUp<T, W, M> body, RowList list) {
  begin_after_previous();
  const int cols = body.table.w.cols, tasks = *list.count * col_tiles(cols, catch_up_cols);
  for (int i = warp_index(); i < tasks; i += warp_stride()) {
    const Task task(i, cols, catch_up_cols);
    body.apply(list.rows[task.item], list.done[task.item], task.first_col);
  }
}

template <class T, class W, class M>
__global__ void __launch_bounds__(block_threads)
    catch_up_all_kernel(CatchUp<T, W, M> body, const std::int32_t* last_read) {
  begin_after_previous();
  const Task task(warp_index(), body.table.w.cols, catch_up_cols);
  const int row = task.item * warp_rows + lane_index();
  const bool inside = lane_index() < warp_rows && row < body.table.w.rows;
  const int done = inside ? last_read[row] + 1 : body.updates;
  for_wanted(done < body.updates, row, done, [&](int r, int d) { body.apply(r, d, task.first_col); });
}

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
                       const AdamRates<float>* rates, AdamFactors<float> f, int t, OrderedSum total, double* squares) {
  begin_after_previous();
  const int groups = ceil_div(table.w.rows, warp_rows), tasks = groups * col_tiles(table.w.cols, update_cols);
  const AdamRates<float> now = rates[t - 1];
  double gradient_squares = 0, weight_squares = 0;
  for (int i = warp_index(); i < tasks; i += warp_stride()) {
    const Task task(i, table.w.cols, update_cols);
    const int row = task.item + groups * lane_index(), col = task.first_col + update_cols * lane_index();
    const bool wanted = lane_index() < warp_rows && row < table.w.rows && last_read[row] == t - 1;
    for_wanted(wanted, row, 0, [&](int r, int) {
      if (col >= table.w.cols) return;
      const std::size_t at = static_cast<std::size_t>(r) * table.w.cols + col;
      W* const w = table.w.data + at;
      M *const m = table.m.data + at, *const v = table.v.data + at;
      auto elements = AdamElements<update_cols>::load(w, m, v);
      Vector<float, update_cols> gradient = load_vector<update_cols>(g.data + at);
#pragma unroll
      for (float& x : gradient.v) {
        x *= f.gradient_scale;
        gradient_squares += static_cast<double>(x) * x;
      }
      elements.update(gradient, f, now);
#pragma unroll
      for (const float x : elements.weight.v) weight_squares += static_cast<double>(x) * x;
      elements.store(w, table.copy.data + at, m, v);
      // Last, behind the stores that wait for it: a store that follows its load at once takes twice as long.
      if (f.clears_gradient) store_vector(g.data + at, Vector<float, update_cols>{});
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
  require(table.w);
  require(table.copy);
  require(table.m);
  require(table.v);
}

template <class T, class W, class M>
CatchUp<T, W, M> catch_up(const char* op, const AdamTable<T, W, M>& table, Vec<const AdamRates<float>> rates,
                          const AdamOptions& options, int updates) {
  require_table(op, table);
  assert(updates >= 0 && static_cast<std::size_t>(updates) <= rates.size());
  return {table, rates.data(), AdamFactors<float>(options), updates};
}

}  // namespace

template <class Index>
void list_rows(Stream stream, const RowList& list, Vec<std::int32_t> last_read, Vec<const Index> indices,
               Vec<const std::int32_t> order, int updates) {
  constexpr const char* op = "list_rows";
  assert(list.rows.size() >= indices.size() && list.done.size() >= indices.size() && order.size() == indices.size());
  const int size = static_cast<int>(indices.size());
  fill<std::int32_t>(stream, {list.count, 1}, 0);
  if (size == 0) return;
  launch(op, stream, list_rows_kernel<Index>, ceil_div(size, block_threads), block_threads, 0, list, last_read.data(),
         indices.data(), order.data(), size, updates);
}

template <class T, class W, class M>
void adam_catch_up(Stream stream, const AdamTable<T, W, M>& table, const RowList& list,
                   Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates) {
  constexpr const char* op = "adam_catch_up";
  if (table.w.size() == 0) return;
  launch(op, stream, catch_up_kernel<T, W, M>, most_blocks(), block_threads, 0,
         catch_up(op, table, rates, options, updates), list);
}

template <class T, class W, class M>
void adam_catch_up_all(Stream stream, const AdamTable<T, W, M>& table, Vec<const std::int32_t> last_read,
                       Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates) {
  constexpr const char* op = "adam_catch_up_all";
  assert(last_read.size() == static_cast<std::size_t>(table.w.rows));
  const CatchUp<T, W, M> body = catch_up(op, table, rates, options, updates);
  if (table.w.size() == 0) return;
  const int tasks = ceil_div(table.w.rows, warp_rows) * col_tiles(table.w.cols, catch_up_cols);
  launch(op, stream, catch_up_all_kernel<T, W, M>, row_blocks(tasks), block_threads, 0, body, last_read.data());
}

void mark_caught_up(Stream stream, Vec<std::int32_t> last_read, int updates) {
  launch_elementwise<1>("mark_caught_up", stream, last_read.size(), NoteAll{last_read.data(), updates},
                        last_read.data());
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
  const int tasks = ceil_div(table.w.rows, warp_rows) * col_tiles(table.w.cols, update_cols);
  launch(op, stream, update_rows_kernel<T, W, M>, std::min(row_blocks(tasks), most_blocks()), block_threads, 0, table,
         g, last_read.data(), rates.data(), AdamFactors<float>(options), t, OrderedSum(stream), squares);
}

#define NANORUN_ADAM_ROWS(T, W, M)                                                                            \
  template void adam_catch_up(Stream, const AdamTable<T, W, M>&, const RowList&, Vec<const AdamRates<float>>, \
                              const AdamOptions&, int);                                                       \
  template void adam_catch_up_all(Stream, const AdamTable<T, W, M>&, Vec<const std::int32_t>,                 \
                                  Vec<const AdamRates<float>>, const AdamOptions&, int);                      \
  template void adam_update_rows(Stream, const AdamTable<T, W, M>&, Mat<float>, Vec<const std::int32_t>,      \
                                 Vec<const AdamRates<float>>, const AdamOptions&, int, double*);
NANORUN_ADAM_ROWS(bf16, float, float)
NANORUN_ADAM_ROWS(bf16, float, bf16)
NANORUN_ADAM_ROWS(bf16, bf16, float)
NANORUN_ADAM_ROWS(bf16, bf16, bf16)
template void list_rows(Stream, const RowList&, Vec<std::int32_t>, Vec<const Token>, Vec<const std::int32_t>, int);
template void list_rows(Stream, const RowList&, Vec<std::int32_t>, Vec<const std::int32_t>, Vec<const std::int32_t>,
                        int);

}  // namespace nanorun::kernels::cuda
