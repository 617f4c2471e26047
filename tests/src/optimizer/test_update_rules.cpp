#include "src/optimizer/update_rules.hpp"

#include <gtest/gtest.h>

namespace nanorun {
namespace {

TEST(UpdateRules, StarsStandForAnyCharacters) {
  EXPECT_TRUE(matches("bigram", "bigram"));
  EXPECT_FALSE(matches("bigram", "bigram_sign"));
  EXPECT_TRUE(matches("bigram*", "bigram_sign"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("block.*.mlp_out", "block.10.mlp_out"));
  EXPECT_FALSE(matches("block.*.mlp_out", "block.10.mlp_in"));
  EXPECT_TRUE(matches("*_net.*.bias", "mudd_net.0.bias"));
  EXPECT_TRUE(matches("*a*a", "banana"));
  EXPECT_FALSE(matches("*a*b", "banana"));
  EXPECT_FALSE(matches("", "a"));
}

Config tiny_config() {
  Config config;
  config.model.vocabulary = 100;
  config.model.width = 16;
  config.model.heads = 2;
  config.model.head_dim = 8;
  config.model.layers = 4;
  config.model.value_embeddings = 1;
  return config;
}

TEST(UpdateRules, TheFirstGroupThatNamesATensorHasIt) {
  Config config = tiny_config();
  config.optimizer.muon_decay = 1.5;
  config.group = {{{"embedding"}, 0.1, 0.5, 0.6, 0.7}, {{"*embedding*", "block.*"}, 0.2, 0.3, 0.4, 0.5}};
  const ParameterTable table(config.model);
  EXPECT_EQ(update_rule(config, table.find("embedding")), (UpdateRule{0.1, 0.5, 0.6, 0.7}));
  EXPECT_EQ(update_rule(config, table.find("value_embedding.0")), (UpdateRule{0.2, 0.3, 0.4, 0.5}));
  // Muon's decay is one for all matrices.
  EXPECT_EQ(update_rule(config, table.find("block.1.mlp_in")).decay, 1.5);
  const OptimizerConfig& o = config.optimizer;
  EXPECT_EQ(update_rule(config, table.find("head")), (UpdateRule{o.lr_head, o.adam_beta1, o.adam_beta2, 0}));
}

TEST(UpdateRules, GroupsThatNameNothingAreTold) {
  Config config = tiny_config();
  config.group = {{{"embedding", "bigram"}, 0.1}, {{"mudd_net.*"}, 0.1}};
  const std::vector<std::string> expected = {"warning: group.0.tensors: no tensor of the model is called bigram",
                                             "warning: group.1.tensors: no tensor of the model is called mudd_net.*"};
  EXPECT_EQ(group_warnings(config, ParameterTable(config.model)), expected);
}

TEST(UpdateRules, FormatsAreAdams) {
  Config config = tiny_config();
  config.optimizer.adam_moments = StateFormat::bf16;
  config.group = {{{"embedding", "block.*.mlp_in"}, 0.1, 0.5, 0.6, 0.7, StateFormat::bf16, StateFormat::fp32}};
  const ParameterTable table(config.model);
  const auto formats = [&](const char* name) {
    const UpdateRule rule = update_rule(config, table.find(name));
    return std::pair(rule.master, rule.moments);
  };
  constexpr StateFormat fp32 = StateFormat::fp32, bf16 = StateFormat::bf16;
  EXPECT_EQ(formats("embedding"), std::pair(bf16, fp32));
  EXPECT_EQ(formats("head"), std::pair(fp32, bf16));
  EXPECT_EQ(formats("block.1.mlp_in"), std::pair(fp32, fp32));
  EXPECT_EQ(formats("block.1.mlp_out"), std::pair(fp32, fp32));
  const std::vector<std::string> expected = {
      "warning: group.0: master and moments are Adam's; Muon updates block.3.mlp_in in fp32"};
  EXPECT_EQ(group_warnings(config, table), expected);
  config.model.tied_head = true;
  EXPECT_EQ(formats("embedding"), std::pair(fp32, bf16)) << "as the head";
  config.train.untie_step = -1;
  EXPECT_EQ(formats("embedding"), std::pair(bf16, fp32));
}

TEST(UpdateRules, OnlyMuonsWeightsAreTruncated) {
  Config config = tiny_config();
  const ParameterTable table(config.model);
  EXPECT_FALSE(update_rule(config, table.find("block.0.qkv")).truncates);
  config.optimizer.muon_truncates = true;
  for (const Parameter& parameter : table.parameters()) {
    EXPECT_EQ(update_rule(config, parameter).truncates, parameter.group == Group::matrix) << parameter.name;
  }
}

TEST(UpdateRules, MuonTakesHeadsOfQueriesAndKeysApart) {
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

}  // namespace
}  // namespace nanorun
