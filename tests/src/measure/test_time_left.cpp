// The time that a run still takes, from times that are given.

#include "src/measure/time_left.hpp"

#include <gtest/gtest.h>

namespace nanorun {
namespace {

constexpr std::int64_t validation_tokens = 6000;

/// 10 steps of 2 sequences of 500 tokens, a validation after every fourth and after the last.
Config deck() {
  Config config;
  config.train.steps = 10;
  config.train.sequences = 2;
  config.train.length = 500;
  config.validation.every = 4;
  return config;
}

void add_steps(TimeLeft& left, int count, double seconds) {
  for (int i = 0; i < count; ++i) left.add_step(seconds);
}

TEST(TimeLeft, CountsStepsAndValidations) {
  const Config config = deck();
  TimeLeft left(config, validation_tokens, 0);
  left.add_validation(7);  // before the first step
  add_steps(left, 3, 0.5);
  EXPECT_DOUBLE_EQ(left.seconds(), 7 * 0.5 + 3 * 7) << "of steps 4, 8 and 10";
  add_steps(left, 1, 0.5);
  EXPECT_DOUBLE_EQ(left.seconds(), 6 * 0.5 + 3 * 7) << "that of step 4 is still to come";
  left.add_validation(3);
  add_steps(left, 1, 1.5);
  EXPECT_DOUBLE_EQ(left.seconds(), 5 * (4 * 0.5 + 1.5) / 5 + 2 * 3) << "the mean step, and the last validation";
  add_steps(left, 5, 0.7);
  EXPECT_DOUBLE_EQ(left.seconds(), 3) << "the last step is made, its validation is not";
}

TEST(TimeLeft, TheLastValidationCountsBeforeAnyWasMade) {
  Config config = deck();
  config.validation.every = 0;
  TimeLeft left(config, validation_tokens, 0);
  add_steps(left, 9, 0.5);
  // 6000 tokens take as long as 6 steps in training, and a third of it without a backward pass.
  EXPECT_DOUBLE_EQ(left.seconds(), 0.5 + 1);
  add_steps(left, 1, 0.5);
  EXPECT_DOUBLE_EQ(left.seconds(), 1);
}

TEST(TimeLeft, WithoutValidations) {
  const Config config = deck();
  TimeLeft left(config, 0, 0);
  EXPECT_EQ(left.seconds(), 0) << "nothing is known yet";
  add_steps(left, 4, 0.5);
  EXPECT_DOUBLE_EQ(left.seconds(), 3);
}

TEST(TimeLeft, OfARunThatGoesOn) {
  const Config config = deck();
  TimeLeft left(config, validation_tokens, 8);
  left.add_validation(2);
  add_steps(left, 1, 0.5);
  EXPECT_DOUBLE_EQ(left.seconds(), 0.5 + 2);
}

TEST(TimeLeft, StepsOfLaterStagesTakeAsLongAsTheirTokens) {
  Config config = deck();
  config.stage.resize(2);
  config.stage[0].share = config.stage[1].share = 0.5;
  config.stage[0].length = 500;
  config.stage[1].length = 1500;
  TimeLeft left(config, 0, 0);
  add_steps(left, 2, 0.5);
  EXPECT_DOUBLE_EQ(left.seconds(), 3 * 0.5 + 5 * 1.5);
}

TEST(TimeLeft, WarnsOnceOfValidationsThatTakeMoreThanAThird) {
  const Config config = deck();
  for (const double seconds : {1.0, 1.3}) {  // 4 validations beside 10 s of training
    TimeLeft left(config, validation_tokens, 0);
    left.add_validation(100);  // the first one of a start is slow
    EXPECT_EQ(left.warning(), "");
    add_steps(left, 4, 1);
    left.add_validation(seconds);
    const std::string warning = left.warning();
    EXPECT_EQ(warning, seconds < 1.25 ? ""
                                      : "validations of 1.3 s each are going to take 34 % of the time: raise "
                                        "validation.every or lower validation.tokens");
    left.add_validation(seconds);
    EXPECT_EQ(left.warning(), "");
  }
}

}  // namespace
}  // namespace nanorun
