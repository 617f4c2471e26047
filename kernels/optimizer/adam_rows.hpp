#pragma once
// Adam (adam.hpp) on a lookup table, of which a step reads few rows. A row that no sequence reads has no gradient, and
// its update needs nothing but the row itself: it can wait until a sequence reads the row. Each element gets the same
// updates in the same order as from adam_update, and on GPUs the same bits.
//
// Updates are numbered from 1. last_read[row] says when the row was last read: after how many updates. The gradient of
// that read enters with the next update, so that none of the updates up to last_read[row] + 1 waits. Hence
//   after `updates` updates the row has had updates 1 to min(last_read[row] + 1, updates), and lacks the others.
// Example: a row is read when 4 updates have been made, and again when 8 have.
//   first read:   list_rows and adam_catch_up bring it up to update 4; last_read = 4
//   update 5:     adam_update_rows applies it, with the gradient of the read
//   updates 6-8:  pass the row over
//   second read:  list_rows lists the row with done = 5, adam_catch_up applies updates 6 to 8; last_read = 8
// A table that has had all of `updates` updates begins with last_read = updates in every row.
//
//   list_rows, adam_catch_up           before a sequence reads rows; tables that share last_read need one list
//   adam_update_rows                   in every update
//   adam_catch_up_all, mark_caught_up  before anything else reads the table
// Shapes: w, copy, m, v, g [rows, d], without gaps; last_read [rows]; indices, order [n]; rates [updates or more],
// where rates[t - 1] belongs to update t. `order` has the positions of `indices` sorted by index. The rates replace lr,
// t, decay and epsilon_hat of the options.

#include "kernels/device/op.hpp"
#include "kernels/optimizer/adam.hpp"

namespace nanorun::kernels {

/// A lookup table and what Adam keeps of it, see adam_update.
template <class T, class W = acc_t<T>, class M = acc_t<T>>
struct AdamTable {
  Mat<W> w;
  Mat<T> copy;
  Mat<M> m, v;
};

/// Rows that lack updates, in no order: the first *count entries of `rows` and `done` [n or more]. Row rows[i] has had
/// updates 1 to done[i].
struct RowList {
  Vec<std::int32_t> rows, done;
  std::int32_t* count;
};

NANORUN_DECLARE_OPS({
  /// list = the rows at `indices` that lack any of the `updates` updates made so far. Then last_read = updates for all
  /// rows at `indices`.
  template <class Index>
  void list_rows(Stream stream, const RowList& list, Vec<std::int32_t> last_read, Vec<const Index> indices,
                 Vec<const std::int32_t> order, int updates);

  /// Applies to the rows of the list the updates that they lack, up to update `updates`.
  /// CUDA: T, W, M as for adam_update; rows are whole 16-byte vectors; else std::invalid_argument.
  template <class T, class W, class M>
  void adam_catch_up(Stream stream, const AdamTable<T, W, M>& table, const RowList& list,
                     Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates);

  /// Applies to all rows the updates that they lack, up to update `updates`. Leaves last_read as it is, so that tables
  /// which share it can follow; then call mark_caught_up.
  /// CUDA: demands what adam_catch_up does.
  template <class T, class W, class M>
  void adam_catch_up_all(Stream stream, const AdamTable<T, W, M>& table, Vec<const std::int32_t> last_read,
                         Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates);

  /// last_read = max(last_read, updates - 1) in all rows: afterwards no row lacks an update, and no row counts as read.
  void mark_caught_up(Stream stream, Vec<std::int32_t> last_read, int updates);

  /// Update t, with gradients, of the rows that were read since update t - 1: those with last_read = t - 1. squares [2]
  /// as of adam_update, summed over these rows. CUDA: demands what adam_catch_up does. The sums have a fixed order. The
  /// stream needs create_sums().
  template <class T, class W, class M>
  void adam_update_rows(Stream stream, const AdamTable<T, W, M>& table, Mat<acc_t<T>> g,
                        Vec<const std::int32_t> last_read, Vec<const AdamRates<acc_t<T>>> rates,
                        const AdamOptions& options, int t, double* squares);
})

}  // namespace nanorun::kernels
