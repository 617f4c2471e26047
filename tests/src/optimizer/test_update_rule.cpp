#include "src/optimizer/update_rule.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/tiny_config.hpp"

namespace nanorun {
namespace {

using Strings = std::vector<std::string>;

Config config_with_bigrams() {
  Config config = tiny_config();
  config.model.bigram_rows = 20;
  config.model.bigram_sign_rows = 5;
  return config;
}

/// Prefixes of what the rule of a tensor keeps.
Strings kept(const Config& config, const std::string& name) {
  const ParameterTable table(config.model);
  const Parameter& parameter = table.find(name);
  const OwnedRows rows{&parameter, parameter.size() / parameter.cols, static_cast<std::uint64_t>(parameter.cols),
                       0,          parameter.size() / parameter.cols, parameter.offset};
  Strings prefixes;
  for (const StateTensor& state : UpdateRules<double>(config).of(parameter.group).state(rows)) {
    prefixes.push_back(state.prefix);
    if (state.prefix != "/muon/second_moment/") {
      EXPECT_EQ(state.rows.size(), parameter.size());
    }
  }
  return prefixes;
}

TEST(UpdateRules, KeepTheStateOfCheckpoints) {
  Config config = config_with_bigrams();
  EXPECT_EQ(kept(config, "block.0.qkv"), Strings{"/muon/momentum/"});
  config.optimizer.normuon_beta = 0.9;
  EXPECT_EQ(kept(config, "block.0.qkv"), (Strings{"/muon/momentum/", "/muon/second_moment/"}));
  for (const char* const name : {"head", "embedding", "bigram", "block.1.residual_mix"}) {
    EXPECT_EQ(kept(config, name), (Strings{"/adam/m/", "/adam/v/"})) << name;
  }
  EXPECT_EQ(kept(config, "bigram_sign"), Strings{});
}

TEST(UpdateRules, NameAllThatTheyKeep) {
  Strings prefixes;
  for (const RuleTraits& rule : all_rules()) {
    for (const StateGroup& group : rule.state) prefixes.push_back(group.prefix);
  }
  EXPECT_EQ(prefixes, (Strings{"/muon/momentum/", "/muon/second_moment/", "/muon/slow_momentum/", "/adam/m/",
                               "/adam/v/", "/adam/gradient/"}));
}

TEST(UpdateRules, SayWhichKeysDecideTheirState) {
  EXPECT_EQ(state_group_of("/adam/gradient/head")->keys, (Strings{"optimizer.adam_period", "group.*.period"}));
  EXPECT_EQ(state_group_of("/adam/m/head")->keys, Strings{});
  EXPECT_EQ(state_group_of("/muon/second_moment/block.0.qkv")->keys.size(), 4u);
  EXPECT_EQ(state_group_of("/weights/head"), nullptr);
}

TEST(UpdateRules, OnlyAdamSumsGradientsOverSteps) {
  Config config = config_with_bigrams();
  config.optimizer.adam_period = 3;
  const UpdateRules<double> rules(config);
  EXPECT_EQ(rules.of(Group::lm_head).period(), 3);
  EXPECT_EQ(rules.of(Group::matrix).period(), 1);
  EXPECT_EQ(rules.of(Group::scalar).gradient_prefix(), "/adam/gradient/");
  EXPECT_EQ(rules.of(Group::matrix).gradient_prefix(), "");
  config.optimizer.adam_period = 1;
  EXPECT_EQ(UpdateRules<double>(config).of(Group::scalar).gradient_prefix(), "");
  EXPECT_EQ(UpdateRules<double>(config).of(Group::scalar).period(), 1);
  config.group = {{{"bigram"}, 0.1}};
  config.group[0].period = 4;
  EXPECT_EQ(UpdateRules<double>(config).of(Group::scalar).gradient_prefix(), "/adam/gradient/");
}

TEST(UpdateRules, AreAllListedByName) {
  const Config config = config_with_bigrams();
  const UpdateRules<double> rules(config);
  ASSERT_EQ(rules.all().size(), all_rules().size());
  std::set<std::string> names;
  for (const RuleTraits& traits : all_rules()) {
    EXPECT_EQ(&traits_of(traits.rule), &traits);
    EXPECT_EQ(rules.all().count(traits.rule), 1u) << traits.name;
    names.insert(traits.name);
  }
  EXPECT_EQ(names, (std::set<std::string>{"muon", "adam", "fixed"}));
}

TEST(UpdateRules, OfTablesAndScalarsShareTheirPeriod) {
  const ParameterTable table(config_with_bigrams().model);
  const auto common = [&](const std::map<Group, int>& periods) {
    return common_period(table.buckets(), [&](Group group) {
      const auto own = periods.find(group);
      return own == periods.end() ? 3 : own->second;
    });
  };
  EXPECT_EQ(common({{Group::matrix, 1}}), 3);
  EXPECT_EQ(common({{Group::matrix, 1}, {Group::fixed, 7}}), 3);
  EXPECT_THROW(common({}), Error);                                        // matrices sum nothing over steps
  EXPECT_THROW(common({{Group::matrix, 1}, {Group::scalar, 2}}), Error);  // tables and scalars begin anew together
}

TEST(UpdateRules, OnlyMuonBatchesShapesAndNeedsScratch) {
  const Config config = config_with_bigrams();
  const ParameterTable table(config.model);
  const UpdateRules<double> rules(config);
  for (const Bucket& bucket : table.buckets()) {
    const UpdateRule<double>& rule = rules.of(bucket.group);
    EXPECT_EQ(rule.batches_shapes(), bucket.group == Group::matrix);
    EXPECT_EQ(rule.scratch_bytes({table.owned(bucket, NodeLayout(), 0)}) > 0, bucket.group == Group::matrix);
  }
}

}  // namespace
}  // namespace nanorun
