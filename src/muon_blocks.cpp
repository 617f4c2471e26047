#include "src/muon_blocks.hpp"

#include <algorithm>

#include "src/update_rules.hpp"

namespace nanorun {

namespace {

/// Blocks of all matrices of a tensor before `matrix`.
std::uint64_t blocks_before(const Config& config, const Parameter& parameter, std::uint64_t matrix) {
  std::uint64_t blocks = 0;
  for (std::uint64_t i = 0; i < matrix; ++i) {
    blocks += parameter.rows / muon_block_rows(config, parameter, static_cast<int>(i));
  }
  return blocks;
}

}  // namespace

template <class A>
std::vector<kernels::MatrixBatch<A>> blocks_of(const Config& config, const std::vector<OwnedRows>& tensors, A* data) {
  std::vector<kernels::MatrixBatch<A>> blocks;
  for (const OwnedRows& rows : tensors) {
    const Parameter& p = *rows.parameter;
    const auto first = static_cast<int>(rows.first_row / p.rows), count = static_cast<int>(rows.row_count / p.rows);
    for (int matrix = first; matrix < first + count; ++matrix) {
      const int block = muon_block_rows(config, p, matrix);
      if (blocks.empty() || blocks.back().rows != block) blocks.push_back({data, 0, block, p.cols});
      blocks.back().count += p.rows / block;
      if (data != nullptr) data += static_cast<std::size_t>(p.rows) * p.cols;
    }
  }
  return blocks;
}

template <class A>
std::size_t line_count(const std::vector<kernels::MatrixBatch<A>>& blocks) {
  std::size_t lines = 0;
  for (const kernels::MatrixBatch<A>& b : blocks)
    lines += static_cast<std::size_t>(b.count) * kernels::normuon_lines(b.rows, b.cols);
  return lines;
}

template <class A>
void split_shape(std::vector<kernels::MatrixBatch<A>>& batches, std::vector<kernels::MatrixBatch<A>>& shape) {
  const kernels::MatrixBatch<A> first = batches.front();
  const auto other = [&](const kernels::MatrixBatch<A>& b) {
    return std::minmax(b.rows, b.cols) != std::minmax(first.rows, first.cols);
  };
  const auto same = std::stable_partition(batches.begin(), batches.end(), other);
  shape.assign(same, batches.end());
  batches.erase(same, batches.end());
}

OwnedRows line_rows(const Config& config, const OwnedRows& rows) {
  const Parameter& p = *rows.parameter;
  const std::uint64_t first = rows.first_row / p.rows, end = (rows.first_row + rows.row_count) / p.rows;
  OwnedRows lines = rows;
  lines.cols = kernels::normuon_lines(muon_block_rows(config, p, 0), p.cols);
  lines.total_rows = blocks_before(config, p, p.matrices);
  lines.first_row = blocks_before(config, p, first);
  lines.row_count = blocks_before(config, p, end) - lines.first_row;
  return lines;
}

#define NANORUN_INSTANTIATE(A)                                                                               \
  template std::vector<kernels::MatrixBatch<A>> blocks_of(const Config&, const std::vector<OwnedRows>&, A*); \
  template std::size_t line_count(const std::vector<kernels::MatrixBatch<A>>&);                              \
  template void split_shape(std::vector<kernels::MatrixBatch<A>>&, std::vector<kernels::MatrixBatch<A>>&);
NANORUN_INSTANTIATE(float)
NANORUN_INSTANTIATE(double)
#undef NANORUN_INSTANTIATE

}  // namespace nanorun
