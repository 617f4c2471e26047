#pragma once
// Adam (adam.hpp) on the rows of a lookup table, each row only when a sequence reads it. A row that no sequence has
// read has no gradient; its updates need nothing but the row itself, so they can wait. Each element gets the same
// updates in the same order as from adam_update, and on GPUs the same bits.
//
// Updates are numbered from 1. last_read[row] is the number of updates that had been made when the row was last read;
// at first 0, as if all rows had been read. Such a row has had update last_read[row] + 1 as soon as that was made. So
// before update `updates` + 1 it lacks the updates last_read[row] + 2 to `updates`.
//   adam_catch_up, then note_rows    before a sequence reads the rows
//   adam_update_rows                 update t, of the rows with last_read[row] = t - 1, with their gradients
//   adam_catch_up_all, note_all      before whatever else reads the table
// Shapes: w, copy, m, v, g [rows, d], without gaps; last_read [rows]; indices, order [n]; rates [updates or more], that
// of update t at t - 1. `order` has the positions of `indices` sorted by index. Of the options lr, t, decay and
// epsilon_hat are not read: the rates stand for them.

#include "kernels/adam.hpp"

namespace nanorun::kernels {

/// A lookup table and what Adam keeps of it, see adam_update.
template <class T, class W = acc_t<T>, class M = acc_t<T>>
struct AdamTable {
  Mat<W> w;
  Mat<T> copy;
  Mat<M> m, v;
};

namespace portable {

/// Brings the rows at `indices` up to date after `updates` updates; last_read stays.
template <class T, class W, class M, class Index>
void adam_catch_up(Stream stream, const AdamTable<T, W, M>& table, Vec<const Index> indices,
                   Vec<const std::int32_t> order, Vec<const std::int32_t> last_read,
                   Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates);
/// The same of all rows.
template <class T, class W, class M>
void adam_catch_up_all(Stream stream, const AdamTable<T, W, M>& table, Vec<const std::int32_t> last_read,
                       Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates);

/// last_read of the rows at `indices` = updates.
template <class Index>
void note_rows(Stream stream, Vec<std::int32_t> last_read, Vec<const Index> indices, int updates);
/// last_read of all rows is raised to updates - 1, if it is less: they are up to date and have not been read.
void note_all(Stream stream, Vec<std::int32_t> last_read, int updates);

/// Update t of the rows that have been read since the update before. squares [2] as of adam_update, over these rows.
template <class T, class W, class M>
void adam_update_rows(Stream stream, const AdamTable<T, W, M>& table, Mat<acc_t<T>> g,
                      Vec<const std::int32_t> last_read, Vec<const AdamRates<acc_t<T>>> rates,
                      const AdamOptions& options, int t, double* squares);

}  // namespace portable

namespace cuda {

/// T, W, M as for adam_update; rows are whole 16-byte vectors, else std::invalid_argument.
template <class T, class W, class M, class Index>
void adam_catch_up(Stream stream, const AdamTable<T, W, M>& table, Vec<const Index> indices,
                   Vec<const std::int32_t> order, Vec<const std::int32_t> last_read,
                   Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates);
template <class T, class W, class M>
void adam_catch_up_all(Stream stream, const AdamTable<T, W, M>& table, Vec<const std::int32_t> last_read,
                       Vec<const AdamRates<acc_t<T>>> rates, const AdamOptions& options, int updates);

template <class Index>
void note_rows(Stream stream, Vec<std::int32_t> last_read, Vec<const Index> indices, int updates);
void note_all(Stream stream, Vec<std::int32_t> last_read, int updates);

/// The sums have a fixed order. The stream needs create_sums().
template <class T, class W, class M>
void adam_update_rows(Stream stream, const AdamTable<T, W, M>& table, Mat<acc_t<T>> g,
                      Vec<const std::int32_t> last_read, Vec<const AdamRates<acc_t<T>>> rates,
                      const AdamOptions& options, int t, double* squares);

}  // namespace cuda
}  // namespace nanorun::kernels
