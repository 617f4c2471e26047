// The schedule of pull request 349 of the speedrun, in which T falls again in a taper and in the extension, against the
// published numbers. Its prefix weights change at quarters of the second stage, which are stages of their own here.

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "src/config/schedule.hpp"

namespace nanorun {
namespace {

Config published_config() {
  constexpr double scheduled = 1218;
  Config config;
  config.train.steps = 1241;
  config.train.extension_steps = 23;
  config.train.cooldown = 0.8;
  config.train.final_lr_factor = 0.2;
  config.data.packing = Packing::documents;
  config.validation.last_long_window = 2560;
  config.optimizer.muon_momentum_last = 0.93;
  config.optimizer.muon_momentum_steps = 240;
  config.optimizer.muon_momentum_cooldown = 50;
  config.stage = {{336 / scheduled, 16384, 896, 128, 384, 1, {1, 0.5, 0.25}, {1, 0.5, 0}, 0.25}};
  constexpr std::array quarters{336, 431, 526, 621, 715};
  const auto second_target = [](int step) { return 0.5 * (715 - step) / 379; };
  for (int i = 0; i < 4; ++i) {
    const int first = quarters[i], end = quarters[i + 1];
    config.stage.push_back({(end - first) / scheduled,
                            32768,
                            2048,
                            384,
                            896,
                            1.52,
                            {1, second_target(first)},
                            {1, second_target(end)},
                            0.05 * (4 - i)});
  }
  config.stage.push_back({432 / scheduled, 49152, 3072, 640, 1408, 1.73, {1}, {}});
  config.stage.push_back({71 / scheduled, 32768, 3072, 640, 1408, 1.73 * std::sqrt(2.0 / 3), {1}, {}});
  config.stage.push_back({0, 16384, 3072, 768, 1664, 1, {1}, {}});
  for (int i = 5; i < 8; ++i) config.stage[i].attention_document = 2048;
  return config;
}

TEST(ScheduleAfterRecord89, HasThePublishedBoundaries) {
  struct Stage {
    long first, end;
    int tokens, longest, attention;
    Windows windows;
  };
  const Config config = published_config();
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

TEST(ScheduleAfterRecord89, HasThePublishedRates) {
  const Config config = published_config();
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

TEST(ScheduleAfterRecord89, HasThePublishedLoss) {
  const Config config = published_config();
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

}  // namespace
}  // namespace nanorun
