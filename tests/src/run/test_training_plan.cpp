#include "src/run/training_plan.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace nanorun {
namespace {

using nlohmann::json;

Config small_config() {
  Config config;
  config.model.vocabulary = 257;
  config.model.width = 64;
  config.model.heads = 2;
  config.model.head_dim = 32;
  config.model.layers = 4;
  config.model.value_embeddings = 1;
  config.model.layers_without_attention = {2};
  return config;
}

/// A table of signs, which is not trained, beside one of bigrams.
Config scaled_config() {
  Config config = small_config();
  config.model.residual = Residual::scaled;
  config.model.bigram_rows = 128;
  config.model.bigram_sign_rows = 64;
  return config;
}

json json_of(const Config& config, int ranks, const std::vector<std::string>& remarks = {}) {
  const ParameterTable table(config.model);
  return json::parse(plan_json(config, table, plan_of(config, table, NodeLayout::consecutive(ranks, 0)), remarks));
}

TEST(PlanJson, NamesItsFormat) {
  const json plan = json_of(small_config(), 2);
  EXPECT_EQ(plan["format"], "nanorun plan");
  EXPECT_EQ(plan["format_version"], 1);
  EXPECT_EQ(plan["ranks"], 2);
}

TEST(PlanJson, HoldsEveryTensorOnceInTheBucketThatHoldsIt) {
  for (const Config& config : {small_config(), scaled_config()}) {
    const ParameterTable table(config.model);
    const json plan = json_of(config, 1);
    std::vector<std::string> names;
    std::size_t elements = 0;
    for (const json& bucket : plan["buckets"]) {
      elements += bucket["units"].get<std::size_t>() * bucket["unit_size"].get<std::size_t>();
      for (const json& tensor : bucket["tensors"]) names.push_back(tensor["name"]);
    }
    std::vector<std::string> expected;
    for (const Parameter& parameter : table.parameters()) expected.push_back(parameter.name);
    EXPECT_EQ(names, expected);
    EXPECT_EQ(elements, table.size());
    EXPECT_EQ(plan["parameters"], table.size());
  }
}

TEST(PlanJson, TellsHowTensorsAreUpdatedAndTravel) {
  const json plan = json_of(small_config(), 1);
  json muon, head, embedding, scalars;
  for (const json& bucket : plan["buckets"]) {
    const std::string first = bucket["tensors"][0]["name"];
    if (first == "block.3.qkv") muon = bucket;
    if (first == "head") head = bucket;
    if (first == "embedding") embedding = bucket;
    if (bucket["scalars"]) scalars = bucket;
  }
  EXPECT_EQ(muon["rule"], "muon");
  EXPECT_EQ(muon["units"], 4);
  EXPECT_EQ(muon["unit_size"], 64 * 64);
  EXPECT_EQ(muon["matrix"], json({64, 64}));
  EXPECT_EQ(muon["tensors"][0]["shape"], json({3, 64, 64}));
  EXPECT_EQ(muon["tensors"][0]["bytes"], 3 * 64 * 64 * sizeof(Real));
  EXPECT_EQ(head["rule"], "adam");
  EXPECT_EQ(head["lookup"], "none");
  EXPECT_FALSE(head.contains("matrix"));
  EXPECT_EQ(embedding["lookup"], "token");
  EXPECT_EQ(embedding["tensors"][0]["shape"], json({257, 64}));
  EXPECT_EQ(scalars["unit_size"], 1);
  for (const json& bucket : {muon, head, embedding, scalars}) EXPECT_TRUE(bucket["travels"]);
}

TEST(PlanJson, TablesThatAreNotTrainedDoNotTravel) {
  const json plan = json_of(scaled_config(), 1);
  int fixed = 0, bigrams = 0;
  for (const json& bucket : plan["buckets"]) {
    EXPECT_EQ(bucket["rule"] == "fixed", !bucket["travels"].get<bool>());
    fixed += bucket["tensors"][0]["name"] == "bigram_sign" && bucket["rule"] == "fixed";
    bigrams += bucket["lookup"] == "bigram";
  }
  EXPECT_EQ(fixed, 1);
  EXPECT_EQ(bigrams, 1);
}

TEST(PlanJson, MemoryAddsUp) {
  const json memory = json_of(small_config(), 1)["memory_bytes"];
  std::uint64_t sum = 0;
  for (const auto& [name, bytes] : memory.items()) {
    if (name != "total") sum += bytes.get<std::uint64_t>();
  }
  EXPECT_EQ(memory["total"], sum);
  EXPECT_GT(memory["optimizer"], 0);
}

TEST(PlanJson, WarningsAreToldFromNotes) {
  const json plan = json_of(small_config(), 1, {"warning: no data", "begins with the weights of a.h5, step 0"});
  EXPECT_EQ(plan["warnings"], json({"no data"}));
  EXPECT_EQ(plan["notes"], json({"begins with the weights of a.h5, step 0"}));
}

TEST(Plan, OfOneRankSendsNothing) {
  const Config config = small_config();
  const ParameterTable table(config.model);
  EXPECT_EQ(plan_of(config, table, NodeLayout()).sending.bytes(), 0);
  EXPECT_GT(plan_of(config, table, NodeLayout::consecutive(2, 0)).sending.bytes(), 0);
}

TEST(Plan, HasTheWorkOfAllSteps) {
  const Config config = small_config();
  const ParameterTable table(config.model);
  const TrainingPlan plan = plan_of(config, table, NodeLayout());
  ASSERT_EQ(plan.stages.size(), 1u);
  EXPECT_EQ(plan.stages[0].steps, config.train.steps);
  EXPECT_EQ(plan.tokens, plan.stages[0].tokens * config.train.steps);
}

}  // namespace
}  // namespace nanorun
