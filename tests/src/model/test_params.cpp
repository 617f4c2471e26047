#include "src/model/params.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

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

/// GPT-2 with 124 million parameters, but for its positions (1024 d), with the padding of the vocabulary, and without
/// the biases of layer norms; the tied head counts twice.
TEST(ParameterTable, CountsTheParametersOfAPlainGpt) {
  ModelConfig model;
  model.residual = Residual::plain;
  model.value_path = ValuePath::none;
  model.embedding_norm = false;
  model.norm_gains = model.biases = model.tied_head = true;
  const ParameterTable table(model);
  const std::size_t d = 768;
  EXPECT_EQ(table.size(), 2 * 50304 * d + 12 * (12 * d * d + (3 + 1 + 4 + 1) * d + 2 * d) + d);
  EXPECT_EQ(table.find("block.3.mlp_in_bias").size(), 4 * d);
  EXPECT_EQ(table.find("final_gain").start, std::vector<double>(d, 1));
  model.norm_gains = model.biases = false;
  EXPECT_EQ(ParameterTable(model).tensor_size(), ParameterTable(model).size()) << "no learned scalars";
}

TEST(ParameterTable, MatricesMayStartNormal) {
  ModelConfig model;
  model.init_std = 0.02;
  model.init_std_outputs = 0.004;
  model.zero_outputs = false;
  const ParameterTable table(model);
  const auto std_of = [&](const char* name) {
    const Parameter& p = table.find(name);
    return p.init == Init::normal ? p.bound : 0;
  };
  EXPECT_EQ(std_of("block.1.qkv"), 0.02);
  EXPECT_EQ(std_of("block.1.mlp_in"), 0.02);
  EXPECT_EQ(std_of("block.1.attention_out"), 0.004);
  EXPECT_EQ(std_of("block.1.mlp_out"), 0.004);
  model.init_std_outputs = 0;
  EXPECT_EQ(ParameterTable(model).find("block.1.mlp_out").bound, 0.02);
  model.zero_outputs = true;
  EXPECT_EQ(ParameterTable(model).find("block.1.mlp_out").init, Init::zero);
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

/// For each number of ranks: all on one node; pairs, threes and eights of them on a node, the last node with fewer;
/// each on a node of its own.
std::vector<NodeLayout> layouts_of(const std::vector<int>& rank_counts) {
  std::vector<NodeLayout> layouts;
  for (const int ranks : rank_counts) {
    for (const int on_node : {0, 2, 3, 8, 1}) layouts.push_back(NodeLayout::consecutive(ranks, on_node));
  }
  return layouts;
}

TEST(Bucket, SharesDifferByAtMostOneUnitAndCoverAll) {
  const Bucket bucket{Group::matrix, -1, 0, 44, 100, 10, 10};
  for (const NodeLayout& layout : layouts_of({1, 2, 3, 7, 8, 64})) {
    const int ranks = layout.ranks();
    const Bounds bounds = bucket.bounds(layout);
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

TEST(Bucket, MatricesOfLikeShapesAreSharedEvenlyOverAllBuckets) {
  const ParameterTable table(record21_model());
  for (const NodeLayout& layout : layouts_of({2, 4, 5, 8, 16, 100})) {
    const int ranks = layout.ranks();
    std::map<int, std::vector<std::size_t>> owned;  // by the sum of the sides
    std::map<int, std::size_t> total;
    for (const Bucket& bucket : table.buckets()) {
      if (bucket.group != Group::matrix) continue;
      std::vector<std::size_t>& counts = owned[bucket.rows + bucket.cols];
      counts.resize(ranks);
      total[bucket.rows + bucket.cols] += bucket.units;
      const Bounds bounds = bucket.bounds(layout);
      for (int r = 0; r < ranks; ++r) counts[r] += (bounds[r + 1] - bounds[r]) / bucket.unit_size;
    }
    ASSERT_EQ(owned.size(), 2u);  // squares, and the two matrices of the hidden layer
    for (const auto& [sides, counts] : owned) {
      for (const std::size_t count : counts) {
        EXPECT_GE(count, total[sides] / ranks);
        EXPECT_LE(count, total[sides] / ranks + 1);
      }
    }
  }
}

/// A model with learned scalars of several columns, which ranks share one by one.
ModelConfig scaled_model() {
  ModelConfig model;
  model.vocabulary = 77;
  model.width = 30;
  model.heads = 6;
  model.head_dim = 5;
  model.layers = 5;
  model.residual = Residual::scaled;
  model.layers_without_attention = {2};
  model.skip_from = {1};
  model.skip_to = {2};
  model.attention_source = 2;
  model.value_path = ValuePath::gated_embeddings;
  model.value_layers = {1, 4};
  model.smear = model.gate_nets = model.mudd = true;
  model.gate_net_layer = 2;
  model.xsa_layers = {1};
  model.gated_layers = {1, 3};
  model.coefficient_width = 7;
  model.bigram_rows = 13;
  return model;
}

/// The parts of ranks tile every tensor.
void check_owned_rows(const ParameterTable& table) {
  for (const NodeLayout& layout : layouts_of({1, 3, 5})) {
    std::size_t covered = 0;
    for (const Bucket& bucket : table.buckets()) {
      std::vector<std::uint64_t> next_row;
      for (int part = 0; part < layout.ranks(); ++part) {
        const std::vector<OwnedRows> owned = table.owned(bucket, layout, layout.rank_of_part(part));
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
    EXPECT_EQ(covered, table.size()) << layout.ranks() << " ranks";
  }
}

TEST(ParameterTable, OwnedRowsOfAllRanksCoverEveryTensorOnce) {
  ModelConfig model = record21_model();
  model.width = 32;
  model.heads = 2;
  model.head_dim = 16;
  model.vocabulary = 77;
  check_owned_rows(ParameterTable(model));
  check_owned_rows(ParameterTable(scaled_model()));
}

TEST(ParameterTable, FixedTensorsHaveNoPlaceAmongTheGradients) {
  ModelConfig model = scaled_model();
  const ParameterTable without(model);
  EXPECT_EQ(without.gradient_size(), without.size());
  model.bigram_sign_rows = 5;
  const ParameterTable table(model);
  const Parameter& fixed = table.find("bigram_sign");
  EXPECT_EQ(table.size(), without.size() + fixed.size());
  EXPECT_EQ(table.gradient_size(), without.size());
  EXPECT_EQ(fixed.offset + fixed.size(), table.tensor_size());
  for (const Parameter& p : table.parameters()) {
    if (p.group == Group::fixed) continue;
    EXPECT_EQ(table.gradient_at(p.offset), without.find(p.name).offset) << p.name;
  }
}

/// All initial values.
std::vector<double> initial_values(const ParameterTable& table, std::int64_t seed) {
  std::vector<double> values(table.size());
  for (const Bucket& bucket : table.buckets()) {
    for (const OwnedRows& rows : table.owned(bucket, NodeLayout(), 0)) {
      initialise<double>({}, std::span(values).subspan(rows.offset, rows.row_count * rows.cols), rows, seed);
    }
  }
  return values;
}

TEST(ParameterTable, BucketsKnowTheLayerThatCompletesThem) {
  const ParameterTable table(record21_model());
  const auto completed_after = [&](const std::string& name) {
    const std::size_t at = table.find(name).offset;
    for (const Bucket& bucket : table.buckets()) {
      if (bucket.offset <= at && at < bucket.offset + bucket.size()) return bucket.layer;
    }
    return -2;
  };
  EXPECT_EQ(completed_after("head"), 12);
  EXPECT_EQ(completed_after("block.11.qkv"), 9);
  EXPECT_EQ(completed_after("block.6.mlp_out"), 6);
  EXPECT_EQ(completed_after("block.5.mlp_in"), 3);
  EXPECT_EQ(completed_after("block.2.attention_out"), 0);
  EXPECT_EQ(completed_after("value_embedding.2"), 2);
  EXPECT_EQ(completed_after("value_embedding.0"), 0);
  EXPECT_EQ(completed_after("embedding"), -1);
  EXPECT_EQ(completed_after("skip.3"), -1);
}

/// Layer of "block.<layer>.<tensor>".
int layer_of(const std::string& name) { return std::stoi(name.substr(std::string("block.").size())); }

TEST(ParameterTable, BucketsOfMatricesHoldAQuarterOfTheLayers) {
  for (int layers = 2; layers <= 26; layers += 2) {
    ModelConfig model;
    model.layers = layers;
    model.value_embeddings = 1;
    for (const int without : {0, layers / 2, layers - 1}) {
      model.layers_without_attention = {without};
      const ParameterTable table(model);
      std::map<std::pair<int, int>, int> buckets_of_shape;
      std::set<std::string> seen;
      for (const Bucket& bucket : table.buckets()) {
        if (bucket.group != Group::matrix) continue;
        buckets_of_shape[{bucket.rows, bucket.cols}] += 1;
        for (const OwnedRows& rows : table.owned(bucket, NodeLayout(), 0)) {
          const int layer = layer_of(rows.parameter->name);
          EXPECT_GE(layer, bucket.layer);
          EXPECT_LT(layer - bucket.layer, (layers + 3) / 4) << layers << " layers";
          EXPECT_EQ(rows.parameter->rows, bucket.rows);
          EXPECT_EQ(rows.parameter->cols, bucket.cols);
          EXPECT_TRUE(seen.insert(rows.parameter->name).second);
        }
      }
      EXPECT_EQ(buckets_of_shape.size(), 3u);
      for (const auto& [shape, count] : buckets_of_shape) EXPECT_LE(count, 4) << layers << " layers";
      EXPECT_EQ(seen.size(), 4u * layers - 2);
    }
  }
}

/// Also where the quarters are no whole number of layers, or fewer than four.
TEST(ParameterTable, LayersFromTheFirstOfABucketAreThoseOfIt) {
  ModelConfig model;
  for (model.layers = 1; model.layers <= 12; ++model.layers) {
    const ParameterTable table(model);
    std::vector<int> layers(model.layers);
    for (int i = 0; i < model.layers; ++i) {
      for (const char* const name : {"mlp_in", "mlp_out"}) {
        const Parameter& p = table.find(block_name(i, name));
        const auto holds = [&](const Bucket& b) { return b.offset <= p.offset && p.offset < b.offset + b.size(); };
        const int first = std::ranges::find_if(table.buckets(), holds)->layer;
        EXPECT_TRUE(first <= i && i < first + table.layers_from(first)) << model.layers << " layers, layer " << i;
        if (name == std::string("mlp_in")) ++layers[first];
      }
    }
    for (int i = 0; i < model.layers; ++i) EXPECT_EQ(table.layers_from(i), layers[i]) << model.layers << " layers";
  }
}

TEST(ParameterTable, BucketsOfMatricesGrowWithTheNodes) {
  const ModelConfig model = record21_model();
  const std::map<int, int> groups = {{1, 4}, {2, 4}, {16, 4}, {17, 3}, {32, 3}, {33, 2}, {512, 2}, {4096, 2}};
  for (const auto& [nodes, count] : groups) {
    EXPECT_EQ(layer_groups(nodes), count) << nodes << " nodes";
    const ParameterTable table(model, nodes);
    EXPECT_EQ(std::ranges::count(table.buckets(), Group::matrix, &Bucket::group), 3 * count) << nodes << " nodes";
    EXPECT_EQ(table.size(), ParameterTable(model).size());
    EXPECT_EQ(table.layout(), ParameterTable(model).layout());
  }
}

TEST(ParameterTable, ScalarsCloseIt) {
  const ParameterTable table(record21_model());
  EXPECT_EQ(table.size() - table.tensor_size(), 24u + 22u + 6u);
  for (const Bucket& bucket : table.buckets()) EXPECT_EQ(bucket.scalars(), bucket.offset >= table.tensor_size());
}

TEST(Initialise, FollowsTheDocumentedDistributions) {
  ModelConfig model = record21_model();
  model.width = 64;
  model.heads = 2;
  model.head_dim = 32;
  model.vocabulary = 1000;
  model.init_scale = 0.5;
  const ParameterTable table(model);
  const std::vector<double> weights = initial_values(table, 3);

  const auto moment = [&](const std::string& name, int power) {
    const Parameter& p = table.find(name);
    double sum = 0;
    for (std::size_t i = 0; i < p.size(); ++i) sum += std::pow(weights[p.offset + i], power);
    return sum / static_cast<double>(p.size());
  };
  EXPECT_NEAR(moment("embedding", 1), 0, 0.02);
  EXPECT_NEAR(moment("embedding", 2), 1, 0.03);
  EXPECT_NEAR(moment("embedding", 4), 3, 0.2);
  const double bound = 0.5 / std::sqrt(64);
  EXPECT_NEAR(moment("block.2.qkv", 2), bound * bound / 3, 0.05 * bound * bound);
  EXPECT_EQ(moment("head", 2), 0);
  EXPECT_EQ(moment("block.2.mlp_out", 2), 0);
  EXPECT_EQ(weights[table.find("block.4.residual_mix").offset], 1);
  EXPECT_EQ(weights[table.find("block.4.residual_mix").offset + 1], 0);
  EXPECT_EQ(weights[table.find("skip.1").offset], 1);
}

void check_parts(const ParameterTable& table) {
  const std::vector<double> whole = initial_values(table, 1);
  for (const Bucket& bucket : table.buckets()) {
    for (int rank = 0; rank < 3; ++rank) {
      for (const OwnedRows& rows : table.owned(bucket, NodeLayout::consecutive(3, 2), rank)) {
        std::vector<double> part(rows.row_count * rows.cols);
        initialise<double>({}, part, rows, 1);
        for (std::size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], whole[rows.offset + i]);
      }
    }
  }
}

TEST(Initialise, PartsOfRanksMakeUpTheWhole) {
  ModelConfig model = record21_model();
  model.vocabulary = 101;
  model.width = 32;
  check_parts(ParameterTable(model));
  check_parts(ParameterTable(scaled_model()));
}

TEST(Initialise, SeedAndNameBothMatter) {
  ModelConfig model = record21_model();
  model.vocabulary = 100;
  model.width = 32;
  const ParameterTable table(model);
  const std::vector<double> first = initial_values(table, 1), second = initial_values(table, 2);
  const std::size_t at = table.find("embedding").offset, other = table.find("value_embedding.0").offset;
  EXPECT_NE(first[at], second[at]);
  EXPECT_NE(first[at], first[other]);
}

}  // namespace
}  // namespace nanorun
