#include "src/optimizer/muon_blocks.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/support/tiny_config.hpp"

namespace nanorun {
namespace {

TEST(MuonBlocks, HeadsOfQueriesAndKeysCanBeBlocks) {
  Config config = tiny_config();
  const ParameterTable table(config.model);
  const Parameter& qkv = table.find("block.0.qkv");
  EXPECT_EQ(muon_block_rows(config, qkv, 0), 16);
  config.optimizer.muon_block_heads = 1;
  EXPECT_EQ(muon_block_rows(config, qkv, 0), 8);
  EXPECT_EQ(muon_block_rows(config, qkv, 1), 8);
  EXPECT_EQ(muon_block_rows(config, qkv, 2), 16);
  EXPECT_EQ(muon_block_rows(config, table.find("block.0.mlp_in"), 0), 64);
}

/// The blocks of all ranks are those of the tensors, and so are the rows of the second moment.
void expect_covered(const Config& config, int ranks) {
  SCOPED_TRACE(ranks);
  const ParameterTable table(config.model);
  for (const Bucket& bucket : table.buckets()) {
    if (bucket.group != Group::matrix) continue;
    std::map<std::string, std::uint64_t> next_row, total_rows;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<OwnedRows> tensors = table.owned(bucket, NodeLayout::consecutive(ranks, 0), rank);
      std::size_t elements = 0, block_elements = 0, moment = 0, block_moment = 0;
      for (const OwnedRows& rows : tensors) {
        const OwnedRows second = second_moment_rows(config, rows);
        elements += rows.size();
        moment += second.size();
        if (second.row_count > 0) {
          EXPECT_EQ(second.first_row, next_row[rows.parameter->name]) << rows.parameter->name;
        }
        next_row[rows.parameter->name] += second.row_count;
        total_rows[rows.parameter->name] = second.total_rows;
      }
      for (const MuonBlocks& blocks : blocks_of(config, tensors)) {
        block_elements += static_cast<std::size_t>(blocks.count) * blocks.rows * blocks.cols;
        block_moment += blocks.second_moment_size();
      }
      EXPECT_EQ(elements, block_elements);
      EXPECT_EQ(moment, block_moment);
    }
    EXPECT_EQ(next_row, total_rows);
  }
}

TEST(MuonBlocks, RanksCoverAllBlocksAndTheirSecondMomentOnce) {
  Config config = tiny_config();
  for (const int heads : {0, 1}) {
    config.optimizer.muon_block_heads = heads;
    for (const int ranks : {1, 2, 3, 5}) expect_covered(config, ranks);
  }
}

}  // namespace
}  // namespace nanorun
