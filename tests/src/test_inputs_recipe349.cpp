// The deck of pull request 349 of the speedrun against its published stages, rates and averages. T falls again in a
// taper and in the extension. Its prefix weights change at quarters of the second stage, which are stages of their own
// here.

#include <gtest/gtest.h>

#include "src/config/schedule.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "tests/support/record_deck.hpp"

using namespace nanorun;

TEST(InputsRecipe349, HasThePublishedBoundaries) {
  struct Stage {
    long first, end;
    int tokens, longest, attention;
    Windows windows;
  };
  const Config config = input_deck("recipe349");
  for (const Stage& stage : {Stage{0, 336, 131072, 896, 0, {128, 384}},
                             {336, 715, 262144, 2048, 0, {384, 896}},
                             {715, 1147, 393216, 3072, 2048, {640, 1408}},
                             {1147, 1218, 262144, 3072, 2048, {640, 1408}},
                             {1218, 1241, 131072, 3072, 2048, {768, 1664}}}) {
    for (long step = stage.first; step < stage.end; ++step) {
      ASSERT_EQ(step_tokens(config, step), stage.tokens) << step;
      ASSERT_EQ(longest_document_at(config, step), stage.longest) << step;
      Windows windows = stage.windows;
      ASSERT_EQ(validation_windows(config, step), windows) << step;
      windows.document_tokens = stage.attention;
      ASSERT_EQ(windows_at(config, step), windows) << step;
    }
  }
  EXPECT_EQ(validation_windows(config, 1241), (Windows{768, 2560}));
  EXPECT_EQ(tokens_before(config, 1241), 334'888'960);  // 334.9 million
  EXPECT_EQ(rotary_stage(config, 4).attention_scale, rotary_stage(config, 1).attention_scale);
  EXPECT_EQ(rotary_stage(config, 6).attention_scale, rotary_stage(config, 5).attention_scale);
}

TEST(InputsRecipe349, HasThePublishedRates) {
  const Config config = input_deck("recipe349");
  EXPECT_EQ(lr_factor(config, 242), 1);
  for (const auto& [step, factor] : {std::pair(243L, 1.0),
                                     {335L, 0.9245},
                                     {336L, 1.3941},
                                     {600L, 1.0367},
                                     {714L, 0.8823},
                                     {715L, 0.9893},
                                     {1000L, 0.5421},
                                     {1146L, 0.3130},
                                     {1147L, 0.2883},
                                     {1217L, 0.2012},
                                     {1218L, 0.2},
                                     {1240L, 0.2}}) {
    EXPECT_NEAR(lr_factor(config, step), factor, 5e-5) << step;
  }
  for (const auto& [step, momentum] :
       {std::pair(0L, 0.85), {120L, 0.89}, {240L, 0.93}, {1191L, 0.93}, {1216L, 0.89}, {1240L, 0.8516}}) {
    EXPECT_NEAR(muon_momentum(config, step), momentum, 1e-12) << step;
  }
}

TEST(InputsRecipe349, HasThePublishedLoss) {
  const Config config = input_deck("recipe349");
  for (const auto& [step, prefix] : {std::pair(335L, 0.25),
                                     {336L, 0.2},
                                     {430L, 0.2},
                                     {431L, 0.15},
                                     {525L, 0.15},
                                     {526L, 0.1},
                                     {620L, 0.1},
                                     {621L, 0.05},
                                     {714L, 0.05},
                                     {715L, 0.0},
                                     {1240L, 0.0}}) {
    EXPECT_NEAR(targets_at(config, step).prefix_weight, prefix, 1e-12) << step;
  }
  for (long step = 336; step < 715; ++step) {
    ASSERT_EQ(targets_at(config, step).count, 2);
    ASSERT_NEAR(targets_at(config, step).weights[1], 0.5 * (1 - static_cast<double>(step - 336) / 379), 1e-12) << step;
  }
  EXPECT_NEAR(targets_at(config, 335).weights[2], 0.25 / 336, 1e-12);
  EXPECT_EQ(targets_at(config, 715).count, 1);
}

TEST(InputsRecipe349, HasThePublishedGroups) {
  const Config config = input_deck("recipe349");
  const ParameterTable table = parameter_table(config);
  EXPECT_TRUE(group_warnings(config, table).empty());
  for (const char* name : {"bigram", "value_embedding.4"}) {
    const Hyperparameters hyper = hyperparameters(config, table.find(name));
    EXPECT_EQ(hyper.lr, 0.56) << name;
    EXPECT_EQ(hyper.decay, 0.025) << name;
    for (const auto& [step, due] :
         {std::pair(333L, true), {334L, false}, {335L, true}, {337L, false}, {339L, true}, {1239L, true}})
      EXPECT_EQ(hyper.updates.updates_at(step), due) << name << ", step " << step;
  }
  EXPECT_EQ(hyperparameters(config, table.find("block.0.qkv")).decay, 1.5);
  EXPECT_EQ(hyperparameters(config, table.find("block.0.mlp_out")).lr, 0.092);
  EXPECT_TRUE(hyperparameters(config, table.find("head")).updates.updates_at(config.train.untie_step));
}

TEST(InputsRecipe349, HasThePublishedAverages) {
  const Config config = input_deck("recipe349");
  ASSERT_EQ(config.average.size(), 3u);
  const auto rate = [&](int row, long step) { return average_rate(config, config.average[row], step); };
  const double first[] = {943, 991, 945}, later[] = {2.0 / 299, 0.02, 2.0 / 75};
  for (int row = 0; row < 3; ++row) {
    EXPECT_EQ(rate(row, first[row] - 1), 0) << row;
    EXPECT_EQ(rate(row, first[row]), 1) << row;
    EXPECT_EQ(rate(row, first[row] + config.average[row].every), later[row]) << row;
    EXPECT_EQ(rate(row, 1240), later[row]) << row;
  }
  EXPECT_EQ(rate(2, 947), 0);
  EXPECT_EQ(rate(2, 1237), 2.0 / 75);
}
