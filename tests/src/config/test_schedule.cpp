#include "src/config/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace nanorun {
namespace {

Config with_window(WindowConfig window, int steps) {
  Config config;
  config.window = std::move(window);
  config.train.steps = steps;
  return config;
}

int long_window(const Config& config, long step) { return windows_at(config, step).long_tokens; }

/// Two stages of 60 and 40 steps, and an extension of 10.
Config staged() {
  Config config;
  config.train.steps = 110;
  config.train.extension_steps = 10;
  config.train.cooldown = 0.5;
  config.train.final_lr_factor = 0.2;
  config.train.sequences = 2;
  config.stage.resize(3);
  config.stage[0].share = 0.6;
  config.stage[0].length = 128;
  config.stage[0].longest_document = 100;
  config.stage[0].short_window = 16;
  config.stage[0].long_window = 64;
  config.stage[1].share = 0.4;
  config.stage[1].length = 512;
  config.stage[1].short_window = 24;
  config.stage[1].long_window = 64;
  config.stage[1].lr_factor = 1.5;
  config.stage[2].length = 256;
  config.stage[2].short_window = 48;
  config.stage[2].long_window = 192;
  return config;
}

/// llm.c's schedules: (step + 1) / warmup at first, then from the first step behind it a cosine, or a line, to the end.
TEST(LearningRate, WarmsUpAndFalls) {
  Config config;
  config.train.steps = 1000;
  config.train.warmup = 100;
  config.train.cooldown = 0.9;
  config.train.final_lr_factor = 0.1;
  EXPECT_DOUBLE_EQ(lr_factor(config, 0), 0.01);
  EXPECT_DOUBLE_EQ(lr_factor(config, 49), 0.5);
  EXPECT_DOUBLE_EQ(lr_factor(config, 99), 1);
  EXPECT_DOUBLE_EQ(lr_factor(config, 100), 1);
  EXPECT_NEAR(lr_factor(config, 325), 0.1 + 0.9 * 0.75, 1e-12);
  config.train.cooldown_shape = CooldownShape::cosine;
  EXPECT_DOUBLE_EQ(lr_factor(config, 49), 0.5);
  for (const int step : {100, 325, 550, 999, 1000}) {
    const double coefficient = 0.5 * (1 + std::cos(std::numbers::pi * (step - 100) / 900.0));
    EXPECT_NEAR(lr_factor(config, step), 0.1 + 0.9 * coefficient, 1e-12) << step;
  }
}

TEST(Targets, TheirWeightsAddUpWhereTheLossIsAWeightedSum) {
  Config config = staged();
  EXPECT_EQ(loss_weights(config, 0), std::nullopt);
  config.stage[0].targets = {1, 0.5};
  config.stage[0].targets_end = {1, 0};
  config.stage[1].prefix = 0.25;
  config.stage[2].targets = {0.5};
  EXPECT_DOUBLE_EQ(loss_weights(config, 0).value(), 1.5);
  EXPECT_DOUBLE_EQ(loss_weights(config, 30).value(), 1.25);
  EXPECT_DOUBLE_EQ(loss_weights(config, 60).value(), 1.25);
  EXPECT_DOUBLE_EQ(loss_weights(config, 105).value(), 0.5);
  config.stage.clear();
  EXPECT_EQ(loss_weights(config, 0), std::nullopt);
}

TEST(Schedule, LearningRateOfRecord13FallsToZeroOverTheLast640Steps) {
  Config config;
  config.train.steps = 1750;
  config.train.cooldown = 640.0 / 1750;
  config.train.final_lr_factor = 0;
  EXPECT_DOUBLE_EQ(lr_factor(config, 0), 1);
  EXPECT_DOUBLE_EQ(lr_factor(config, 1109), 1);
  EXPECT_NEAR(lr_factor(config, 1430), 0.5, 1e-12);
  EXPECT_NEAR(lr_factor(config, 1749), 1.0 / 640, 1e-12);
}

TEST(Schedule, LearningRateOfRecord21FallsToATenth) {
  Config config;
  config.train.steps = 1000;
  config.train.cooldown = 0.4;
  config.train.final_lr_factor = 0.1;
  EXPECT_DOUBLE_EQ(lr_factor(config, 599), 1);
  EXPECT_NEAR(lr_factor(config, 800), 0.55, 1e-12);
  EXPECT_NEAR(lr_factor(config, 1000), 0.1, 1e-12);
}

TEST(Schedule, MomentumRisesOverTheFirstSteps) {
  const Config config;
  EXPECT_DOUBLE_EQ(muon_momentum(config, 0), 0.85);
  EXPECT_NEAR(muon_momentum(config, 150), 0.90, 1e-12);
  EXPECT_DOUBLE_EQ(muon_momentum(config, 300), 0.95);
  EXPECT_DOUBLE_EQ(muon_momentum(config, 5000), 0.95);
}

TEST(Schedule, MomentumFallsOverTheLastSteps) {
  Config config;
  config.train.steps = 500;
  config.optimizer.muon_momentum_cooldown = 100;
  EXPECT_DOUBLE_EQ(muon_momentum(config, 400), 0.95);
  EXPECT_NEAR(muon_momentum(config, 450), 0.90, 1e-12);
  EXPECT_NEAR(muon_momentum(config, 499), 0.851, 1e-12);
  EXPECT_NEAR(muon_momentum(config, 150), 0.90, 1e-12);
}

TEST(Schedule, WindowOfRecord13MovesByTokens) {
  const Config config = with_window({WindowKind::token, "L", 64, 1792, 64, Rounding::floor}, 1750);
  EXPECT_EQ(long_window(config, 0), 64);
  EXPECT_EQ(long_window(config, 64), 64);   // 127.2 tokens
  EXPECT_EQ(long_window(config, 65), 128);  // 128.2 tokens
  EXPECT_EQ(long_window(config, 1750), 1792);
}

TEST(Schedule, WindowOfRecord18RoundsDownToBlocks) {
  const Config config = with_window({WindowKind::block, "L", 128, 1856, 128, Rounding::floor}, 1390);
  EXPECT_EQ(long_window(config, 0), 128);
  EXPECT_EQ(long_window(config, 695), 7 * 128);  // 992 tokens
  EXPECT_EQ(long_window(config, 1390), 14 * 128);
}

TEST(Schedule, WindowOfRecord21RoundsUpToBlocksAndShortLayersTakeHalf) {
  const Config config = with_window({WindowKind::block, "LSSSLSSLSSSL", 0, 1728, 128, Rounding::ceil}, 1770);
  EXPECT_EQ(windows_at(config, 0), (Windows{128, 128}));
  EXPECT_EQ(long_window(config, 1), 128);
  EXPECT_EQ(windows_at(config, 885), (Windows{3 * 128, 7 * 128}));  // 864 tokens
  EXPECT_EQ(windows_at(config, 1770), (Windows{7 * 128, 14 * 128}));
  EXPECT_TRUE(is_long_layer(config.window, 0));
  EXPECT_FALSE(is_long_layer(config.window, 3));
  EXPECT_TRUE(is_long_layer(config.window, 7));
}

TEST(Schedule, ShortWindowsOfTokensAreHalvesInQuanta) {
  const Config config = with_window({WindowKind::tokens_before, "L", 320, 320, 64, Rounding::floor}, 10);
  EXPECT_EQ(windows_at(config, 3), (Windows{2 * 64, 5 * 64}));
}

TEST(Schedule, ADeckWithoutStagesIsOneStage) {
  Config config;
  config.train.steps = 20;
  config.train.length = 256;
  config.train.sequences = 4;
  EXPECT_EQ(stage_count(config), 1);
  EXPECT_EQ(stage_of(config, 19), 0);
  EXPECT_EQ(stage_steps(config, 0).first, 0);
  EXPECT_EQ(stage_steps(config, 0).end, 20);
  EXPECT_EQ(length_at(config, 7), 256);
  EXPECT_EQ(longest_length(config), 256);
  EXPECT_EQ(longest_document_at(config, 7), 0);
  EXPECT_EQ(step_tokens(config, 7), 1024);
  EXPECT_EQ(tokens_before(config, 7), 7 * 1024);
  const Targets targets = targets_at(config, 7);
  EXPECT_EQ(targets.count, 1);
  EXPECT_EQ(targets.weights[0], 1);
  EXPECT_EQ(targets.prefix_weight, 0);
}

TEST(Schedule, StagesDivideTheScheduledSteps) {
  const Config config = staged();
  EXPECT_EQ(scheduled_steps(config.train), 100);
  EXPECT_EQ(stage_count(config), 3);
  for (const auto& [stage, first, end] : {std::tuple(0, 0L, 60L), {1, 60L, 100L}, {2, 100L, 110L}}) {
    EXPECT_EQ(stage_steps(config, stage).first, first);
    EXPECT_EQ(stage_steps(config, stage).end, end);
    EXPECT_EQ(stage_of(config, first), stage);
    EXPECT_EQ(stage_of(config, end - 1), stage);
  }
  EXPECT_EQ(stage_of(config, 110), 2);  // stage of the last validation
}

TEST(Schedule, SharesAreRoundedToTheNearestStep) {
  Config config = staged();
  config.train.extension_steps = 0;
  config.stage.pop_back();
  config.train.steps = 11;
  EXPECT_EQ(stage_steps(config, 0).end, 7);  // 6.6
  config.train.steps = 12;
  EXPECT_EQ(stage_steps(config, 0).end, 7);  // 7.2
  EXPECT_EQ(stage_steps(config, 1).end, 12);
}

TEST(Schedule, StagesHaveLengthsAndWindowsOfTheirOwn) {
  const Config config = staged();
  EXPECT_EQ(length_at(config, 59), 128);
  EXPECT_EQ(length_at(config, 60), 512);
  EXPECT_EQ(length_at(config, 109), 256);
  EXPECT_EQ(longest_length(config), 512);
  EXPECT_EQ(longest_document_at(config, 59), 100);
  EXPECT_EQ(longest_document_at(config, 60), 0);
  EXPECT_EQ(windows_at(config, 59), (Windows{16, 64}));
  EXPECT_EQ(windows_at(config, 60), (Windows{24, 64}));
  EXPECT_EQ(windows_at(config, 110), (Windows{48, 192}));
  EXPECT_EQ(tokens_before(config, 0), 0);
  EXPECT_EQ(tokens_before(config, 61), 2 * (60 * 128 + 512));
  EXPECT_EQ(tokens_before(config, 110), 2 * (60 * 128 + 40 * 512 + 10 * 256));
}

TEST(Schedule, OnlyTheLastValidationHasAWindowOfItsOwn) {
  Config config = staged();
  EXPECT_EQ(validation_windows(config, 110), (Windows{48, 192}));
  config.validation.last_long_window = 256;
  EXPECT_EQ(validation_windows(config, 109), (Windows{48, 192}));
  EXPECT_EQ(validation_windows(config, 110), (Windows{48, 256}));
  config.stage.clear();
  config.window = {WindowKind::block, "L", 128, 128, 128, Rounding::ceil};
  EXPECT_EQ(validation_windows(config, 110).long_tokens, 256);
}

TEST(Schedule, RatesOfAStageFallToTheFinalOnes) {
  const Config config = staged();
  EXPECT_DOUBLE_EQ(lr_factor(config, 49), 1);
  EXPECT_NEAR(lr_factor(config, 55), 0.9 + 0.1 * 0.2, 1e-12);
  EXPECT_NEAR(lr_factor(config, 60), 1.5 * 0.8 + 0.2 * 0.2, 1e-12);
  EXPECT_NEAR(lr_factor(config, 99), 1.5 * 0.02 + 0.98 * 0.2, 1e-12);
  EXPECT_NEAR(lr_factor(config, 100), 0.2, 1e-12);
  EXPECT_NEAR(lr_factor(config, 109), 0.2, 1e-12);
}

TEST(Schedule, WithoutACooldownRatesNeverFall) {
  Config config = staged();
  config.train.cooldown = 0;
  EXPECT_DOUBLE_EQ(lr_factor(config, 99), 1.5);
  EXPECT_DOUBLE_EQ(lr_factor(config, 100), 1);  // the factor of the extension's stage
  EXPECT_DOUBLE_EQ(lr_factor(config, 110), 1);
}

TEST(Schedule, WeightsOfTargetsMoveThroughTheirStage) {
  Config config = staged();
  config.stage[0].targets = {1, 0.5, 0.25};
  config.stage[0].targets_end = {1, 0.5, 0};
  config.stage[0].prefix = 0.4;
  config.stage[1].targets = {1, 0.5};
  config.stage[1].prefix = 0.4;
  config.stage[1].prefix_end = 0;
  const Targets first = targets_at(config, 0), half = targets_at(config, 30), last = targets_at(config, 59);
  EXPECT_EQ(first.count, 3);
  EXPECT_DOUBLE_EQ(first.weights[2], 0.25);
  EXPECT_DOUBLE_EQ(half.weights[0], 1);
  EXPECT_DOUBLE_EQ(half.weights[1], 0.5);
  EXPECT_NEAR(half.weights[2], 0.125, 1e-12);
  EXPECT_NEAR(last.weights[2], 0.25 / 60, 1e-12);
  EXPECT_DOUBLE_EQ(half.prefix_weight, 0.4);
  const Targets second = targets_at(config, 80);
  EXPECT_EQ(second.count, 2);
  EXPECT_DOUBLE_EQ(second.weights[1], 0.5);
  EXPECT_NEAR(second.prefix_weight, 0.2, 1e-12);
  EXPECT_EQ(targets_at(config, 105).count, 1);
  EXPECT_EQ(targets_at(config, 105).prefix_weight, 0);
}

TEST(Schedule, RotaryFrequencies) {
  Config config;
  config.model.head_dim = 16;
  config.model.rotary_base = 16;
  const RotaryStage half = rotary_stage(config, 0);
  ASSERT_EQ(half.frequencies.size(), 8u);
  for (int j = 0; j < 4; ++j) EXPECT_NEAR(half.frequencies[j], std::pow(16, -j / 3.0), 1e-12);
  for (int j = 4; j < 8; ++j) EXPECT_EQ(half.frequencies[j], 0);
  EXPECT_DOUBLE_EQ(half.attention_scale, 0.25);
  config.model.rotary = RotaryKind::full;
  config.model.attention_scale = 0.12;
  const RotaryStage full = rotary_stage(config, 0);
  for (int j = 0; j < 8; ++j) EXPECT_NEAR(full.frequencies[j], std::pow(16, -j / 8.0), 1e-12);
  EXPECT_DOUBLE_EQ(full.attention_scale, 0.12);
  config.model.rotary = RotaryKind::half_truncated;
  config.model.rotary_frequencies = {1, 0.5, 0.3, 0.01};
  EXPECT_EQ(rotary_stage(config, 0).frequencies, (std::vector<double>{1, 0.5, 0.3, 0.01, 0, 0, 0, 0}));
}

TEST(Schedule, YarnFollowsTheLongWindow) {
  Config config = staged();
  config.model.head_dim = 16;
  config.model.attention_scale = 0.1;
  const RotaryStage before = rotary_stage(config, 0);
  EXPECT_EQ(rotary_stage(config, 2).frequencies, before.frequencies);
  config.model.yarn = true;
  EXPECT_EQ(rotary_stage(config, 1).frequencies, before.frequencies);  // the window stays at 64
  const RotaryStage after = rotary_stage(config, 2);                   // 64 -> 192
  EXPECT_NEAR(after.attention_scale, 0.1 * (1 + 0.2 * std::log(3)), 1e-12);
  for (int j = 0; j < 8; ++j) {
    const double f = before.frequencies[j], turns = 64 * f / (2 * std::numbers::pi);
    const double kept = turns < 1 ? 0 : (turns - 1) / 31;
    EXPECT_NEAR(after.frequencies[j], f * (1.0 / 3 + kept * 2 / 3), 1e-12) << j;
  }
  EXPECT_GT(after.frequencies[0], 1.0 / 3);  // ten turns in a window: between the two
}

TEST(Schedule, ValidationsAreDueEverySoManyStepsAndAtTheEnd) {
  Config config;
  config.train.steps = 25;
  config.validation.every = 10;
  config.validation.tokens = 1024;
  const auto due = [&] {
    std::vector<long> steps;
    for (long step = 0; step <= config.train.steps; ++step)
      if (validation_due(config, step)) steps.push_back(step);
    return steps;
  };
  EXPECT_EQ(due(), (std::vector<long>{0, 10, 20, 25}));
  config.validation.every = 0;
  EXPECT_EQ(due(), (std::vector<long>{25}));
  config.validation.tokens = 0;
  EXPECT_EQ(due(), (std::vector<long>{}));
}

TEST(Schedule, CheckpointsAreDueEverySoManyStepsAndWhereAskedForAtTheEnd) {
  Config config;
  config.train.steps = 20;
  config.checkpoint.every = 10;
  config.checkpoint.at_end = false;
  EXPECT_TRUE(checkpoint_due(config, 10));
  EXPECT_FALSE(checkpoint_due(config, 15));
  EXPECT_FALSE(checkpoint_due(config, 20));
  config.checkpoint.at_end = true;
  EXPECT_TRUE(checkpoint_due(config, 20));
  config.checkpoint.every = 0;
  EXPECT_FALSE(checkpoint_due(config, 10));
  EXPECT_TRUE(checkpoint_due(config, 20));
}

}  // namespace
}  // namespace nanorun
