#pragma once
// What checkpoints store, and the optimizer holds: this rank's part of tensors.

#include <cstdint>
#include <span>
#include <string>

namespace nanorun {

/// This rank's part of one tensor-shaped quantity of a checkpoint: rows [first_row, first_row + row_count) of a
/// dataset [total_rows, cols]. Every rank lists the same datasets in the same order; row_count may be 0.
template <class T>
struct Slab {
  std::string dataset;
  std::uint64_t total_rows = 0;
  std::uint64_t cols = 0;
  std::uint64_t first_row = 0;
  std::uint64_t row_count = 0;
  std::span<T> data;
};

}  // namespace nanorun
