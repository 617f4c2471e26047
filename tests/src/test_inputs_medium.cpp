// The deck of GPT-2 Medium's record 18 beside the published script's stages, rates and sizes.

#include <gtest/gtest.h>

#include "src/config/schedule.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "tests/support/every_second_step.hpp"
#include "tests/support/record_deck.hpp"

using namespace nanorun;

TEST(InputsMedium, Medium18HasThePublishedStages) {
  const Config config = input_deck("medium18");
  const long begins[] = {0, 392, 784, 1175, 1567, 1959, 2350, 2742, 3134, 4700};
  for (int stage = 0; stage < 10; ++stage) EXPECT_EQ(stage_steps(config, stage).first, begins[stage]) << stage;
  EXPECT_EQ(windows_at(config, 784), (Windows{640, 1408}));
  EXPECT_EQ(windows_at(config, 4739), (Windows{1408, 2944}));
  EXPECT_EQ(validation_windows(config, 4740), (Windows{1408, 3456}));
  EXPECT_NEAR(lr_factor(config, 1409), 2, 1e-12);
  EXPECT_NEAR(lr_factor(config, 3055), 2 * 0.5 + 0.1 * 0.5, 1e-12);
  EXPECT_NEAR(lr_factor(config, 4700), 0.1, 1e-12);
  EXPECT_NEAR(muon_momentum(config, 4715), 0.95 - 0.1 * 25 / 50, 1e-12);
}

/// YaRN stops at the window of the fourth stage.
TEST(InputsMedium, Medium18RescalesItsAngles) {
  const Config config = input_deck("medium18");
  const double scales[] = {0.1, 0.116946, 0.127518, 0.131778};
  for (int stage = 0; stage < 10; ++stage)
    EXPECT_NEAR(rotary_stage(config, stage).attention_scale, scales[std::min(stage, 3)], 1e-6) << stage;
  EXPECT_EQ(rotary_stage(config, 9).frequencies, rotary_stage(config, 3).frequencies);
}

TEST(InputsMedium, Medium18HasThePublishedTensors) {
  const Config config = input_deck("medium18");
  const ParameterTable table = parameter_table(config);
  std::size_t tables = 0, matrices = 0, gates = 0, scalars = 0;
  for (const Parameter& p : table.parameters()) {
    if (p.group == Group::matrix) {
      matrices += p.size();
    } else if (p.name.ends_with("_gate")) {
      gates += p.size();
    } else if (p.offset >= table.tensor_size()) {
      scalars += p.size();
    } else {
      tables += p.size();
    }
  }
  EXPECT_EQ(matrices, 201'326'592u);
  // Eight tables; those that are not tied to the head lack its 47 rows of padding.
  EXPECT_EQ(tables, (8 * 50304 - 6 * 47) * std::size_t{1024});
  EXPECT_EQ(gates, 3392u);
  EXPECT_EQ(scalars, 32u + 53u);
  EXPECT_NEAR(table.find("block.3.qkv").bound, 0.05413, 1e-5);
  EXPECT_NEAR(table.find("block.3.mlp_in").bound, 0.02706, 1e-5);
  EXPECT_EQ(table.find("block.3.attention_out").init, Init::zero);
  EXPECT_EQ(table.find("block.3.residual_mix").start, std::vector<double>{1.05});
  EXPECT_EQ(table.find("skip_factor").start, std::vector<double>(3, -1.5));
  EXPECT_EQ(table.find("backout").start, std::vector<double>{0.5});
}

TEST(InputsMedium, Medium18HasThePublishedRates) {
  const Config config = input_deck("medium18");
  const ParameterTable table = parameter_table(config);
  const auto rule = [&](const char* name) { return hyperparameters(config, table.find(name)); };
  const StateFormat bf16 = StateFormat::bf16;
  EXPECT_EQ(rule("head"), in_every_second_step({Rule::adam, 0.004, 0.8, 0.95, 0.75, bf16, bf16}));
  EXPECT_EQ(rule("embedding2"), in_every_second_step({Rule::adam, 0.3, 0.8, 0.95, 0.025, bf16, bf16}));
  EXPECT_EQ(rule("block.7.injection"), in_every_second_step({Rule::adam, 0.02, 0.8, 0.95, 0}));
  EXPECT_EQ(rule("skip_gate"), in_every_second_step({Rule::adam, 4e-5, 0.8, 0.95, 0, bf16, bf16}));
  EXPECT_EQ(rule("backout"), in_every_second_step({Rule::adam, 0.04, 0.9, 0.99, 0}));
  for (const char* gate : {"block.7.attention_gate", "block.0.value_gate"}) {
    const Hyperparameters hyper = rule(gate);
    EXPECT_EQ(hyper.rule, Rule::muon);
    EXPECT_EQ(hyper.lr, 0.0015);
    EXPECT_EQ(hyper.decay, 1.2);
    EXPECT_TRUE(hyper.master == bf16 && hyper.moments == bf16);
  }
  EXPECT_TRUE(group_warnings(config, table).empty());
}
