#include "src/run/training_plan.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/model/gradients.hpp"
#include "src/run/plan_text.hpp"

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

json json_of(const Config& config, int ranks, const std::vector<std::string>& remarks = {}, int ranks_per_node = 0) {
  const NodeLayout layout = NodeLayout::consecutive(ranks, ranks_per_node);
  const ParameterTable table(config.model, layout.nodes());
  return json::parse(plan_json(config, table, plan_of(config, table, layout), remarks));
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

/// Matrices in bf16, the rest and those of one layer in fp32.
TEST(Plan, CountsTheGradientsThatLieInMemory) {
  for (Config config : {small_config(), scaled_config()}) {
    const NodeLayout layout = NodeLayout::consecutive(1, 0);
    const ParameterTable table(config.model);
    const double wide = plan_of(config, table, layout).memory.gradients;
    EXPECT_EQ(wide, static_cast<double>(table.gradient_size() * sizeof(kernels::acc_t<Real>)));
    config.optimizer.matrix_gradients = StateFormat::bf16;
    const TrainingPlan plan = plan_of(config, table, layout);
    const double matrices = 3 * 4 * 64 * 64 + 4 * 8 * 64 * 64, layer = 12 * 64 * 64;
    EXPECT_EQ(plan.memory.gradients,
              wide - matrices * (sizeof(kernels::acc_t<Real>) - sizeof(Real)) + layer * sizeof(kernels::acc_t<Real>));
    const Gradients<Real> gradients(config, table);
    EXPECT_EQ(gradients.span().size() + gradients.matrices().size(), table.gradient_size());
    EXPECT_EQ(plan.memory.gradients,
              static_cast<double>(gradients.span().size_bytes() + gradients.matrices().size_bytes() +
                                  gradients.spans().of_layer.size_bytes()));
  }
}

TEST(PlanJson, WarningsAreToldFromNotes) {
  const json plan = json_of(small_config(), 1, {"warning: no data", "begins with the weights of a.h5, step 0"});
  EXPECT_EQ(plan["warnings"], json({"no data"}));
  EXPECT_EQ(plan["notes"], json({"begins with the weights of a.h5, step 0"}));
}

TEST(Plan, OfOneRankSendsNothing) {
  const Config config = small_config();
  const ParameterTable table(config.model);
  EXPECT_EQ(plan_of(config, table, NodeLayout()).sending.all.bytes(), 0);
  EXPECT_GT(plan_of(config, table, NodeLayout::consecutive(2, 0)).sending.all.bytes(), 0);
}

/// 384 rows of the LM head. A fourth of the steps has 128 candidates, a half 256, the others none.
Config candidates_config() {
  Config config = small_config();
  config.train.sequences = 4;
  config.train.steps = 8;
  for (const auto& [share, candidates] : {std::pair(0.25, 128), {0.5, 256}, {0.25, 0}}) {
    StageConfig& stage = config.stage.emplace_back();
    stage.share = share;
    stage.length = stage.short_window = stage.long_window = 128;
    stage.candidates = candidates;
  }
  return config;
}

/// Two ranks with two sequences each, or four with one.
TEST(Plan, OfStagesWithCandidatesHasTheRowsOfTheHeadThatTravel) {
  const Config config = candidates_config();
  const double row = 64 * sizeof(float);
  const auto head = [&](int ranks, int stage) { return json_of(config, ranks)["stages"][stage]["head_gradient"]; };
  EXPECT_EQ(head(2, 0), json({{"rows", 256}, {"bytes", 192 * row}}));  // at most all that the other rank owns
  EXPECT_EQ(head(2, 1), json({{"rows", 384}, {"bytes", 192 * row}}));
  EXPECT_EQ(head(2, 2), json({{"rows", 384}, {"bytes", 192 * row}}));
  EXPECT_EQ(head(4, 0), json({{"rows", 128}, {"bytes", 128 * row}}));
  EXPECT_EQ(head(4, 1), json({{"rows", 256}, {"bytes", 256 * row}}));
  EXPECT_EQ(head(4, 2), json({{"rows", 384}, {"bytes", 288 * row}}));
  EXPECT_FALSE(json_of(config, 1)["stages"][0].contains("head_gradient"));
}

/// Beside the same deck without candidates.
TEST(Plan, SendsTheMeanOfAllStages) {
  Config config = candidates_config();
  const ParameterTable table(config.model);
  const auto bytes = [&] {
    return plan_of(config, table, NodeLayout::consecutive(4, 0)).sending.reduce_scatter.bytes();
  };
  const double some = bytes();
  for (StageConfig& stage : config.stage) stage.candidates = 0;
  EXPECT_EQ(bytes() - some, (0.25 * (288 - 128) + 0.5 * (288 - 256)) * 64 * sizeof(float));
}

/// Each rank sends the sum of its squares to every other one.
TEST(Plan, OfClippedGradientsSendsTheirSquares) {
  Config config = small_config();
  const ParameterTable table(config.model);
  const auto all = [&] { return plan_of(config, table, NodeLayout::consecutive(4, 0)).sending.all; };
  const PlannedSending before = all();
  config.optimizer.clip_norm = 1;
  EXPECT_EQ(all().bytes() - before.bytes(), 3 * sizeof(double));
  EXPECT_EQ(all().messages_inside - before.messages_inside, 3);
}

TEST(Plan, HasTheWorkOfAllSteps) {
  const Config config = small_config();
  const ParameterTable table(config.model);
  const TrainingPlan plan = plan_of(config, table, NodeLayout());
  ASSERT_EQ(plan.stages.size(), 1u);
  EXPECT_EQ(plan.stages[0].steps, config.train.steps);
  EXPECT_EQ(plan.tokens, plan.stages[0].tokens * config.train.steps);
}

TEST(Plan, CountsTheRanksThatOwnNoMatrixOfAShape) {
  const Config config = small_config();  // three layers with attention, four matrices each; four with an MLP, two each
  const json few = json_of(config, 4)["matrices"], many = json_of(config, 20)["matrices"];
  EXPECT_EQ(few, json::parse(R"([{"shape": [64, 64], "count": 12, "ranks_without": 0},
                                 {"shape": [64, 256], "count": 8, "ranks_without": 0}])"));
  EXPECT_EQ(many[0]["ranks_without"], 8);
  EXPECT_EQ(many[1]["ranks_without"], 12);
}

/// Newton-Schulz takes 5 (4 s² l + 2 s³) operations for a matrix of s <= l, Adam one update for an element.
TEST(Plan, HasTheWorkOfTheBusiestRank) {
  Config config = small_config();
  const double square = 5 * 6 * 64. * 64 * 64, wide = 5 * (4 * 64. * 64 * 256 + 2 * 64. * 64 * 64);
  EXPECT_EQ(json_of(config, 1)["work"]["muon"], 12 * square + 8 * wide);
  EXPECT_EQ(json_of(config, 4)["work"]["muon"], 3 * square + 2 * wide);
  EXPECT_EQ(json_of(config, 16)["work"]["muon"], square + wide);
  EXPECT_EQ(json_of(config, 4096, {}, 8)["work"]["muon"], square + wide);
  const double matrices = 12 * 64 * 64 + 8 * 64 * 256;
  const json one = json_of(config, 1);
  EXPECT_EQ(one["work"]["adam"], one["parameters"].get<double>() - matrices);
  config.optimizer.adam_period = 2;
  EXPECT_EQ(json_of(config, 1)["work"]["adam"], (one["parameters"].get<double>() - matrices) / 2);
}

TEST(Plan, TellsWhatTravelsInsideNodesAndBetweenThem) {
  const Config config = small_config();
  const json one_node = json_of(config, 8)["sent"], nodes = json_of(config, 8, {}, 2)["sent"],
             apart = json_of(config, 8, {}, 1)["sent"];
  EXPECT_EQ(one_node["between"]["messages"], 0);
  EXPECT_EQ(apart["inside"]["messages"], 0);
  EXPECT_GT(nodes["inside"]["bytes"], 0);
  EXPECT_GT(nodes["between"]["bytes"], 0);
  // Each of two places sends half of what a node's only rank would.
  EXPECT_LT(nodes["between"]["bytes"], 0.6 * apart["between"]["bytes"].get<double>());
  for (const json& sent : {one_node, nodes, apart}) {
    for (const char* const level : {"inside", "between"}) {
      for (const char* const what : {"messages", "bytes"}) {
        const double gradients = sent["reduce_scatter"][level][what], weights = sent["all_gather"][level][what];
        EXPECT_LE(sent[level][what], gradients + weights);
        EXPECT_GE(sent[level][what], std::max(gradients, weights));
      }
    }
  }
}

/// A few messages for each bucket and round, whatever the number of nodes.
TEST(Plan, MessagesBetweenNodesGrowWithTheirLogarithm) {
  const Config config = small_config();
  for (int log2 = 1; log2 <= 9; ++log2) {
    const ParameterTable table(config.model, 1 << log2);
    const TrainingPlan plan = plan_of(config, table, NodeLayout::consecutive(8 << log2, 8));
    EXPECT_LE(plan.sending.all.messages_between, 3. * log2 * static_cast<double>(table.buckets().size()));
  }
}

TEST(PlanText, ShowsTheRowsOfTheHeadInDecksWithCandidates) {
  const Config config = candidates_config();
  const ParameterTable table(config.model);
  const auto text_on = [&](int ranks) {
    return plan_text(config, table, plan_of(config, table, NodeLayout::consecutive(ranks, 0)));
  };
  const std::string text = text_on(4);
  for (const char* const line : {"\n  head's gradient, stage 0       at most 32 KiB, 128 of 384 rows\n",
                                 "\n  head's gradient, stage 1       at most 64 KiB, 256 of 384 rows\n",
                                 "\n  head's gradient, stage 2       72 KiB, all 384 rows\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  EXPECT_EQ(text_on(1).find("head's gradient"), std::string::npos);
  const Config without = small_config();
  EXPECT_EQ(plan_text(without, table, plan_of(without, table, NodeLayout::consecutive(4, 0))).find("head's gradient"),
            std::string::npos);
}

TEST(PlanText, NamesTheNodesAndWhatSaysTheirSize) {
  const Config config = small_config();
  const ParameterTable table(config.model);
  TrainingPlan plan = plan_of(config, table, NodeLayout::consecutive(19, 8));
  plan.nodes_from = "--ranks-per-node";
  plan.available = 80e9;
  const std::string text = plan_text(config, table, plan);
  for (const char* const line :
       {"\nnodes                            3 of at most 8 ranks (--ranks-per-node)\n",
        "\nown no 64 x 64 matrix            7 of 19 ranks\n", "\nmemory that a rank has           74.51 GiB\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  EXPECT_EQ(plan_text(config, table, plan_of(config, table, NodeLayout())).find("nodes"), std::string::npos);
}

}  // namespace
}  // namespace nanorun
