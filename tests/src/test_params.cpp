#include "src/params.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "src/arena.hpp"
#include "tests/environment.hpp"

namespace nanorun {
namespace {

ModelConfig record21_model() {
  ModelConfig model;
  model.layers_without_attention = {7};
  return model;
}

TEST(ParameterTable, CountsTheParametersOfRecord21) {
  const ParameterTable table(record21_model());
  // 11 layers with 4 d² of attention, 12 with 8 d² of MLP, 4 embeddings, the head, 12·2 + 11·2 + 6 scalars.
  const std::size_t d = 768;
  EXPECT_EQ(table.size(), (11 * 4 + 12 * 8) * d * d + 4 * 50257 * d + 50304 * d + 24 + 22 + 6);
}

TEST(ParameterTable, TensorsTileTheArenaAndBucketsTileTheTensors) {
  const ParameterTable table(record21_model());
  std::size_t at = 0;
  std::set<std::string> names;
  for (const Parameter& p : table.parameters()) {
    EXPECT_EQ(p.offset, at) << p.name;
    EXPECT_TRUE(names.insert(p.name).second) << p.name;
    at += p.size();
  }
  EXPECT_EQ(at, table.size());
  std::size_t bucket_at = 0;
  for (const Bucket& bucket : table.buckets()) {
    EXPECT_EQ(bucket.offset, bucket_at);
    bucket_at += bucket.size();
  }
  EXPECT_EQ(bucket_at, table.size());
}

TEST(Bucket, SharesDifferByAtMostOneUnitAndCoverAll) {
  const Bucket bucket{Group::matrix, 0, 44, 100, 10, 10};
  for (const int ranks : {1, 2, 3, 7, 8, 64}) {
    const Bounds bounds = bucket.bounds(ranks);
    ASSERT_EQ(bounds.size(), static_cast<std::size_t>(ranks) + 1);
    EXPECT_EQ(bounds.front(), 0u);
    EXPECT_EQ(bounds.back(), bucket.size());
    for (int r = 0; r < ranks; ++r) {
      const std::size_t share = bounds[r + 1] - bounds[r];
      EXPECT_EQ(share % 100, 0u);
      EXPECT_GE(share / 100, 44u / ranks);
      EXPECT_LE(share / 100, 44u / ranks + 1);
    }
  }
}

TEST(ParameterTable, OwnedRowsOfAllRanksCoverEveryTensorOnce) {
  ModelConfig model = record21_model();
  model.width = 32;
  model.heads = 2;
  model.head_dim = 16;
  model.vocabulary = 77;
  const ParameterTable table(model);
  for (const int ranks : {1, 3, 5}) {
    std::size_t covered = 0;
    for (const Bucket& bucket : table.buckets()) {
      std::vector<std::uint64_t> next_row;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<OwnedRows> owned = table.owned(bucket, rank, ranks);
        next_row.resize(owned.size(), 0);
        for (std::size_t i = 0; i < owned.size(); ++i) {
          if (owned[i].row_count == 0) continue;
          EXPECT_EQ(owned[i].first_row, next_row[i]) << owned[i].parameter->name;
          EXPECT_EQ(owned[i].offset, owned[i].parameter->offset + owned[i].first_row * owned[i].cols);
          next_row[i] += owned[i].row_count;
          covered += owned[i].row_count * owned[i].cols;
        }
      }
    }
    EXPECT_EQ(covered, table.size()) << ranks << " ranks";
  }
}

TEST(Initialise, FollowsTheDocumentedDistributions) {
  ModelConfig model = record21_model();
  model.width = 64;
  model.heads = 2;
  model.head_dim = 32;
  model.vocabulary = 1000;
  model.init_scale = 0.5;
  const ParameterTable table(model);
  TensorArena<double> weights(table.size());
  initialise(weights.span(), table, 3, test_comm());

  const auto moment = [&](const std::string& name, int power) {
    const Parameter& p = table.find(name);
    double sum = 0;
    for (std::size_t i = 0; i < p.size(); ++i) sum += std::pow(weights.data()[p.offset + i], power);
    return sum / static_cast<double>(p.size());
  };
  EXPECT_NEAR(moment("embedding", 1), 0, 0.02);
  EXPECT_NEAR(moment("embedding", 2), 1, 0.03);
  EXPECT_NEAR(moment("embedding", 4), 3, 0.2);
  const double bound = 0.5 / std::sqrt(64);
  EXPECT_NEAR(moment("block.2.qkv", 2), bound * bound / 3, 0.05 * bound * bound);
  EXPECT_EQ(moment("head", 2), 0);
  EXPECT_EQ(moment("block.2.mlp_out", 2), 0);
  EXPECT_EQ(weights.data()[table.find("block.4.residual_mix").offset], 1);
  EXPECT_EQ(weights.data()[table.find("block.4.residual_mix").offset + 1], 0);
  EXPECT_EQ(weights.data()[table.find("skip.1").offset], 1);
}

TEST(Initialise, SeedAndNameBothMatter) {
  ModelConfig model = record21_model();
  model.vocabulary = 100;
  model.width = 32;
  const ParameterTable table(model);
  TensorArena<float> first(table.size()), second(table.size());
  initialise(first.span(), table, 1, test_comm());
  initialise(second.span(), table, 2, test_comm());
  const std::size_t at = table.find("embedding").offset, other = table.find("value_embedding.0").offset;
  EXPECT_NE(first.data()[at], second.data()[at]);
  EXPECT_NE(first.data()[at], first.data()[other]);
}

}  // namespace
}  // namespace nanorun
