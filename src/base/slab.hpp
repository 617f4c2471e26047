#pragma once
// This rank's part of a tensor, as the optimizer holds it and checkpoints store it.

#include <cstdint>
#include <span>
#include <string>

namespace nanorun {

/// Rows [first_row, first_row + row_count) of a dataset [total_rows, cols] of a checkpoint. Every rank lists the same
/// datasets in the same order; row_count may be 0. `data` is row-major.
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
