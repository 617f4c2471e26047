#pragma once
// Adam (adam.hpp) on the rows of a lookup table, each row only when a sequence reads it. A row that no sequence has
// read has no gradient; its updates need nothing but the row itself, so they can wait. Each element gets the same
// updates in the same order as from adam_update, and on GPUs the same bits.
//
// Updates are numbered from 1. last_read[row] is the number of updates that had been made when the row was last read,
// or as much as if it had been: at first that of all updates so far. Such a row has had update last_read[row] + 1 as
// soon as that was made. So before update `updates` + 1 it lacks the updates last_read[row] + 2 to `updates`.
//   list_rows, adam_catch_up       before a sequence reads rows: of tables that share last_read, one list for all
//   adam_update_rows               update t, of the rows with last_read[row] = t - 1, with their gradients
//   adam_catch_up_all, note_all    before whatever else reads the table
// Shapes: w, copy, m, v, g [rows, d], without gaps; last_read [rows]; indices, order [n]; rates [updates or more], that
// of update t at t - 1. `order` has the positions of `indices` sorted by index. Of the options lr, t, decay and
// epsilon_hat are not read: the rates stand for them.

#include "kernels/optimizer/adam.hpp"

namespace nanorun::kernels {

/// A lookup table and what Adam keeps of it, see adam_update.
template <class T, class W = acc_t<T>, class M = acc_t<T>>
struct AdamTable {
  Mat<W> w;
  Mat<T> copy;
  Mat<M> m, v;
};

/// Rows that lack updates, and how many they have had: the first *count of rows and done [n or more], in no order.
struct RowList {
  Vec<std::int32_t> rows, done;
  std::int32_t* count;
};

namespace portable {

/// Lists the rows at `indices` that lack some of `updates` updates, and sets last_read of all at `indices` to that.
template <class Index>
void list_rows(Stream stream, const RowList& list, Vec<std::int32_t> last_read, Vec<const Index> indices,
               Vec<const std::int32_t> order, int updates);
/// Brings the rows of the list up to date after `updates` updates.
template <class T, class W, class M>
void adam_catch_up(Stream stream, const AdamTable<T, W, M>& table, const RowList& list,
                   Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates);
/// Brings all rows up to date; last_read stays.
template <class T, class W, class M>
void adam_catch_up_all(Stream stream, const AdamTable<T, W, M>& table, Vec<const std::int32_t> last_read,
                       Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates);

/// last_read of all rows is raised to updates - 1, if it is less: they are up to date and have not been read.
void note_all(Stream stream, Vec<std::int32_t> last_read, int updates);

/// Update t of the rows that have been read since the update before. squares [2] as of adam_update, over these rows.
template <class T, class W, class M>
void adam_update_rows(Stream stream, const AdamTable<T, W, M>& table, Mat<acc_t<T>> g,
                      Vec<const std::int32_t> last_read, Vec<const AdamRates<acc_t<T>>> rates,
                      const AdamOptions& options, int t, double* squares);

}  // namespace portable

namespace cuda {

template <class Index>
void list_rows(Stream stream, const RowList& list, Vec<std::int32_t> last_read, Vec<const Index> indices,
               Vec<const std::int32_t> order, int updates);

/// T, W, M as for adam_update; rows are whole 16-byte vectors, else std::invalid_argument.
template <class T, class W, class M>
void adam_catch_up(Stream stream, const AdamTable<T, W, M>& table, const RowList& list,
                   Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates);
template <class T, class W, class M>
void adam_catch_up_all(Stream stream, const AdamTable<T, W, M>& table, Vec<const std::int32_t> last_read,
                       Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates);

void note_all(Stream stream, Vec<std::int32_t> last_read, int updates);

/// The sums have a fixed order. The stream needs create_sums().
template <class T, class W, class M>
void adam_update_rows(Stream stream, const AdamTable<T, W, M>& table, Mat<acc_t<T>> g,
                      Vec<const std::int32_t> last_read, Vec<const AdamRates<acc_t<T>>> rates,
                      const AdamOptions& options, int t, double* squares);

}  // namespace cuda
}  // namespace nanorun::kernels
