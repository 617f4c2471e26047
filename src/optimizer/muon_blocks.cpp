#include "src/optimizer/muon_blocks.hpp"

#include <algorithm>

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

std::vector<MuonBlocks> blocks_of(const Config& config, const std::vector<OwnedRows>& tensors) {
  std::vector<MuonBlocks> blocks;
  for (const OwnedRows& rows : tensors) {
    const Parameter& p = *rows.parameter;
    const UpdateRule rule = update_rule(config, p);
    const auto first = static_cast<int>(rows.first_row / p.rows), count = static_cast<int>(rows.row_count / p.rows);
    for (int matrix = first; matrix < first + count; ++matrix) {
      const int block = muon_block_rows(config, p, matrix);
      if (blocks.empty() || blocks.back().rows != block || !(blocks.back().rule == rule)) {
        blocks.push_back({0, block, p.cols, rule});
      }
      blocks.back().count += p.rows / block;
    }
  }
  return blocks;
}

std::size_t line_count(const MuonBlocks& blocks) {
  return static_cast<std::size_t>(blocks.count) * kernels::normuon_lines(blocks.rows, blocks.cols);
}

std::size_t line_count(const std::vector<MuonBlocks>& blocks) {
  std::size_t lines = 0;
  for (const MuonBlocks& b : blocks) lines += line_count(b);
  return lines;
}

template <class T>
void split_shape(std::vector<kernels::MuonBatch<T>>& batches, std::vector<kernels::MuonBatch<T>>& shape) {
  const kernels::MuonBatch<T> first = batches.front();
  const auto other = [&](const kernels::MuonBatch<T>& b) {
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

template void split_shape(std::vector<kernels::MuonBatch<Real>>&, std::vector<kernels::MuonBatch<Real>>&);
#if !NANORUN_CUDA
template void split_shape(std::vector<kernels::MuonBatch<double>>&, std::vector<kernels::MuonBatch<double>>&);
#endif

}  // namespace nanorun
