#include "src/optimizer/muon_blocks.hpp"

#include "kernels/ops.hpp"

namespace nanorun {

namespace {

/// Blocks of the first `matrices` matrices of a tensor.
std::uint64_t blocks_before(const Config& config, const Parameter& parameter, std::uint64_t matrices) {
  std::uint64_t blocks = 0;
  for (std::uint64_t i = 0; i < matrices; ++i) {
    blocks += parameter.rows / muon_block_rows(config, parameter, static_cast<int>(i));
  }
  return blocks;
}

}  // namespace

std::size_t MuonBlocks::second_moment_size() const {
  return static_cast<std::size_t>(count) * kernels::normuon_neurons(rows, cols);
}

std::vector<MuonBlocks> blocks_of(const Config& config, const std::vector<OwnedRows>& tensors) {
  std::vector<MuonBlocks> blocks;
  for (const OwnedRows& rows : tensors) {
    const Parameter& p = *rows.parameter;
    const Hyperparameters hyper = hyperparameters(config, p);
    if (is_scalars(p.group)) {
      if (rows.row_count == 0) continue;
      if (blocks.empty() || blocks.back().hyper != hyper) blocks.push_back({0, p.rows, p.cols, hyper});
      ++blocks.back().count;
      continue;
    }
    const auto first = static_cast<int>(rows.first_row / p.rows), count = static_cast<int>(rows.row_count / p.rows);
    for (int matrix = first; matrix < first + count; ++matrix) {
      const int block = muon_block_rows(config, p, matrix);
      if (blocks.empty() || blocks.back().rows != block || blocks.back().hyper != hyper) {
        blocks.push_back({0, block, p.cols, hyper});
      }
      blocks.back().count += p.rows / block;
    }
  }
  return blocks;
}

int muon_block_rows(const Config& config, const Parameter& parameter, int matrix) {
  const int heads = config.optimizer.muon_block_heads;
  const bool queries_or_keys = parameter.matrices == 3 && matrix < 2;
  return queries_or_keys && heads > 0 ? heads * config.model.head_dim : parameter.rows;
}

bool are_scalars(const std::vector<OwnedRows>& tensors) {
  return !tensors.empty() && is_scalars(tensors.front().parameter->group);
}

OwnedRows second_moment_rows(const Config& config, const OwnedRows& rows) {
  const Parameter& p = *rows.parameter;
  if (p.group == Group::scalar_matrix) {
    OwnedRows of_rows = rows;
    of_rows.cols = static_cast<std::uint64_t>(p.rows);
    of_rows.total_rows = 1;
    of_rows.first_row = 0;
    of_rows.row_count = rows.row_count > 0 ? 1 : 0;
    return of_rows;
  }
  const std::uint64_t first = rows.first_row / p.rows, end = (rows.first_row + rows.row_count) / p.rows;
  OwnedRows moment = rows;
  moment.cols = kernels::normuon_neurons(muon_block_rows(config, p, 0), p.cols);
  moment.total_rows = blocks_before(config, p, p.matrices);
  moment.first_row = blocks_before(config, p, first);
  moment.row_count = blocks_before(config, p, end) - moment.first_row;
  return moment;
}

}  // namespace nanorun
