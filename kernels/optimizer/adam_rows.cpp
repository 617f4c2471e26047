#include "kernels/optimizer/adam_rows.hpp"

#include <cassert>

#include "kernels/device/fill.hpp"
#include "kernels/optimizer/adam_portable.hpp"

namespace nanorun::kernels::portable {

namespace {

template <class T>
KOKKOS_INLINE_FUNCTION Sums<2> update_row(const AdamTable<T, T, T>& table, int row, const T* g, const AdamFactors<T>& f,
                                          const AdamRates<T>& rates) {
  return update_elements(table.w.row(row), table.m.row(row), table.v.row(row), g,
                         static_cast<std::size_t>(table.w.cols), f, rates);
}

/// Updates done + 1 to `updates` of a row.
template <class T>
KOKKOS_INLINE_FUNCTION void catch_up_row(const AdamTable<T, T, T>& table, int row, int done, const AdamRates<T>* rates,
                                         const AdamFactors<T>& f, int updates) {
  for (int t = done; t < updates; ++t) update_row<T>(table, row, nullptr, f, rates[t]);
}

}  // namespace

template <class Index>
void list_rows(Stream, const RowList& list, Vec<std::int32_t> last_read, Vec<const Index> indices,
               Vec<const std::int32_t> order, int updates) {
  const int size = static_cast<int>(indices.size());
  assert(order.size() == indices.size() && list.rows.size() >= indices.size() && list.done.size() >= indices.size());
  std::int32_t *const rows = list.rows.data(), *const done = list.done.data(), *const count = list.count;
  std::int32_t* const read = last_read.data();
  const Index* const index = indices.data();
  const std::int32_t* const positions = order.data();
  fill<std::int32_t>({}, {count, 1}, 0);
  for_rows("list_rows", size, [=] KOKKOS_FUNCTION(int i) {
    const int row = index[positions[i]];
    if (i > 0 && index[positions[i - 1]] == row) return;
    if (read[row] + 1 < updates) {
      const int at = Kokkos::atomic_fetch_add(count, 1);
      rows[at] = row;
      done[at] = read[row] + 1;
    }
    read[row] = updates;
  });
}

template <class T, class W, class M>
void adam_catch_up(Stream, const AdamTable<T, W, M>& table, const RowList& list, Vec<const AdamRates<acc_t<T>>> rates,
                   const AdamOptions& options, int updates) {
  static_assert(std::is_same_v<W, T> && std::is_same_v<M, T>);
  assert(static_cast<std::size_t>(updates) <= rates.size());
  const AdamFactors<T> f(options);
  const std::int32_t *const rows = list.rows.data(), *const done = list.done.data(), *const count = list.count;
  const AdamRates<T>* const all = rates.data();
  for_rows("adam_catch_up", static_cast<int>(list.rows.size()), [=] KOKKOS_FUNCTION(int i) {
    if (i < *count) catch_up_row<T>(table, rows[i], done[i], all, f, updates);
  });
}

template <class T, class W, class M>
void adam_catch_up_all(Stream, const AdamTable<T, W, M>& table, Vec<const std::int32_t> last_read,
                       Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates) {
  assert(static_cast<std::size_t>(updates) <= rates.size());
  const AdamFactors<T> f(options);
  const std::int32_t* const read = last_read.data();
  const AdamRates<T>* const all = rates.data();
  for_rows("adam_catch_up_all", table.w.rows,
           [=] KOKKOS_FUNCTION(int row) { catch_up_row<T>(table, row, read[row] + 1, all, f, updates); });
}

void mark_caught_up(Stream, Vec<std::int32_t> last_read, int updates) {
  std::int32_t* const read = last_read.data();
  for_rows("mark_caught_up", static_cast<int>(last_read.size()), [=] KOKKOS_FUNCTION(int i) {
    if (read[i] < updates - 1) read[i] = updates - 1;
  });
}

template <class T, class W, class M>
void adam_update_rows(Stream, const AdamTable<T, W, M>& table, Mat<acc_t<T>> g, Vec<const std::int32_t> last_read,
                      Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int t, double* squares) {
  assert(t >= 1 && static_cast<std::size_t>(t) <= rates.size());
  const AdamFactors<T> f(options);
  const std::int32_t* const read = last_read.data();
  const AdamRates<T>* const now = &rates[t - 1];
  const bool clears = options.clears_gradient;
  const Sums<2> sums = sum_rows<2>("adam_update_rows", table.w.rows, [=] KOKKOS_FUNCTION(int row) {
    if (read[row] != t - 1) return Sums<2>{};
    const Sums<2> of_row = update_row<T>(table, row, g.row(row), f, *now);
    for (int i = 0; clears && i < g.cols; ++i) g.row(row)[i] = 0;
    return of_row;
  });
  add_to(&squares[0], sums.values[0]);
  add_to(&squares[1], sums.values[1]);
}

#define NANORUN_OPS(T)                                                                                                 \
  template void adam_catch_up(Stream, const AdamTable<T, T, T>&, const RowList&, Vec<const AdamRates<T>>,              \
                              const AdamOptions&, int);                                                                \
  template void adam_catch_up_all(Stream, const AdamTable<T, T, T>&, Vec<const std::int32_t>, Vec<const AdamRates<T>>, \
                                  const AdamOptions&, int);                                                            \
  template void adam_update_rows(Stream, const AdamTable<T, T, T>&, Mat<T>, Vec<const std::int32_t>,                   \
                                 Vec<const AdamRates<T>>, const AdamOptions&, int, double*);
NANORUN_FOR_PORTABLE_TYPES(NANORUN_OPS)
template void list_rows(Stream, const RowList&, Vec<std::int32_t>, Vec<const Token>, Vec<const std::int32_t>, int);
template void list_rows(Stream, const RowList&, Vec<std::int32_t>, Vec<const std::int32_t>, Vec<const std::int32_t>,
                        int);

}  // namespace nanorun::kernels::portable
