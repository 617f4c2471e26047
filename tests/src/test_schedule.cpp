#include "src/schedule.hpp"

#include <gtest/gtest.h>

namespace nanorun {
namespace {

TEST(Schedule, LearningRateOfRecord13FallsToZeroOverTheLast640Steps) {
  TrainConfig config;
  config.steps = 1750;
  config.cooldown = 640.0 / 1750;
  config.final_lr_factor = 0;
  EXPECT_DOUBLE_EQ(lr_factor(config, 0), 1);
  EXPECT_DOUBLE_EQ(lr_factor(config, 1109), 1);
  EXPECT_NEAR(lr_factor(config, 1430), 0.5, 1e-12);
  EXPECT_NEAR(lr_factor(config, 1749), 1.0 / 640, 1e-12);
}

TEST(Schedule, LearningRateOfRecord21FallsToATenth) {
  TrainConfig config;
  config.steps = 1000;
  config.cooldown = 0.4;
  config.final_lr_factor = 0.1;
  EXPECT_DOUBLE_EQ(lr_factor(config, 599), 1);
  EXPECT_NEAR(lr_factor(config, 800), 0.55, 1e-12);
  EXPECT_NEAR(lr_factor(config, 1000), 0.1, 1e-12);
}

TEST(Schedule, MomentumRisesOverTheFirstSteps) {
  const OptimizerConfig config;
  EXPECT_DOUBLE_EQ(muon_momentum(config, 0), 0.85);
  EXPECT_NEAR(muon_momentum(config, 150), 0.90, 1e-12);
  EXPECT_DOUBLE_EQ(muon_momentum(config, 300), 0.95);
  EXPECT_DOUBLE_EQ(muon_momentum(config, 5000), 0.95);
}

TEST(Schedule, WindowOfRecord13MovesByTokens) {
  const WindowConfig config{WindowKind::token, "L", 64, 1792, 64, Rounding::floor};
  EXPECT_EQ(long_window(config, 0, 1750), 64);
  EXPECT_EQ(long_window(config, 64, 1750), 64);   // 127.2 tokens
  EXPECT_EQ(long_window(config, 65, 1750), 128);  // 128.2 tokens
  EXPECT_EQ(long_window(config, 1750, 1750), 1792);
}

TEST(Schedule, WindowOfRecord18RoundsDownToBlocks) {
  const WindowConfig config{WindowKind::block, "L", 128, 1856, 128, Rounding::floor};
  EXPECT_EQ(long_window(config, 0, 1390), 128);
  EXPECT_EQ(long_window(config, 695, 1390), 7 * 128);  // 992 tokens
  EXPECT_EQ(long_window(config, 1390, 1390), 14 * 128);
}

TEST(Schedule, WindowOfRecord21RoundsUpToBlocksAndShortLayersTakeHalf) {
  const WindowConfig config{WindowKind::block, "LSSSLSSLSSSL", 0, 1728, 128, Rounding::ceil};
  EXPECT_EQ(long_window(config, 0, 1770), 128);
  EXPECT_EQ(long_window(config, 1, 1770), 128);
  EXPECT_EQ(long_window(config, 885, 1770), 7 * 128);  // 864 tokens
  EXPECT_EQ(long_window(config, 1770, 1770), 14 * 128);
  EXPECT_EQ(short_window(config, 14 * 128), 7 * 128);
  EXPECT_EQ(short_window(config, 7 * 128), 3 * 128);
  EXPECT_EQ(short_window(config, 128), 128);
  EXPECT_TRUE(is_long_layer(config, 0));
  EXPECT_FALSE(is_long_layer(config, 3));
  EXPECT_TRUE(is_long_layer(config, 7));
}

}  // namespace
}  // namespace nanorun
