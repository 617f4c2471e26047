#include "src/data/token_stream.hpp"

#include <gtest/gtest.h>

#include "tests/support/error_of.hpp"
#include "tests/support/small_shards.hpp"

namespace nanorun {
namespace {

TEST(TokenStream, MovesOnWhenAStepAndOneTokenDoNotFit) {
  const Shards shards(counts);
  const TokenStream stream(shards.infos, StepPlan({4, 10}), EndOfData::error);
  EXPECT_EQ(stream.steps(), 5u);
  const std::vector<Cursor> expected{{0, 0, 0}, {0, 40, 0}, {3, 0, 0}, {3, 40, 0}, {4, 0, 0}};
  Cursor cursor;
  for (const Cursor& place : expected) {
    EXPECT_EQ(stream.step_start(cursor, 0), place);
    cursor = stream.next(cursor, 0);
  }
  const std::string message = error_of([&] { stream.step_start(cursor, 0); });
  EXPECT_TRUE(contains(message, "s4.h5")) << message;
  EXPECT_TRUE(contains(message, "5 steps")) << message;
  EXPECT_TRUE(contains(message, "data.end = \"wrap\"")) << message;
}

TEST(TokenStream, WrapsAndCountsEpochs) {
  const Shards shards(counts);
  const TokenStream stream(shards.infos, StepPlan({4, 10}), EndOfData::wrap);
  Cursor cursor;
  for (int step = 0; step < 10; ++step) cursor = stream.next(cursor, 0);
  EXPECT_EQ(stream.step_start(cursor, 0), (Cursor{0, 0, 2}));
}

TEST(TokenStream, NoShardWithAWholeStepIsAnErrorEvenWhenWrapping) {
  const Shards shards({40, 40});
  EXPECT_TRUE(contains(error_of([&] {
                         TokenStream(shards.infos, StepPlan({4, 10}), EndOfData::wrap);
                       }),
                       "no shard holds the 41 tokens of one step: the largest of 2 shards holds 40"));
  EXPECT_NE(error_of([&] { TokenStream({}, StepPlan({4, 10}), EndOfData::wrap); }), "");
}

TEST(StepPlan, PartsFollowEachOther) {
  const StepPlan plan = plan_of_three_parts();
  for (const auto& [step, length] : {std::pair{0L, 2}, {8L, 2}, {9L, 10}, {10L, 10}, {11L, 5}, {1000L, 5}})
    EXPECT_EQ(plan.at(step).length, length) << step;
  const auto taken = plan.least_tokens();
  EXPECT_EQ(taken, (std::vector<std::uint64_t>{8, 40, 20}));
  EXPECT_EQ(plan.steps_in(72, 0, taken), 8u);  // the last target is one token more
  EXPECT_EQ(plan.steps_in(73, 0, taken), 9u);
  EXPECT_EQ(plan.steps_in(112, 0, taken), 9u);
  EXPECT_EQ(plan.steps_in(113, 0, taken), 10u);
  EXPECT_EQ(plan.steps_in(40, 9, taken), 0u);
  EXPECT_EQ(plan.steps_in(101, 10, taken), 4u);
  EXPECT_EQ(plan.steps_in(0, 10, taken), 0u);
  EXPECT_NE(error_of([&] { StepPlan(plan).change(11, {4, 5}); }, ExitCode::internal), "");
  EXPECT_NE(error_of([&] { StepPlan({0, 5}); }, ExitCode::internal), "");
}

TEST(TokenStream, EveryPartNeedsAShardThatHoldsItsSteps) {
  const Shards shards({100, 41});
  StepPlan plan({4, 10});
  plan.change(2, {4, 30});
  const bool complete = true;  // no shards follow that have not been opened
  const auto refusal = [&](bool complete) {
    return error_of([&] { TokenStream(shards.infos, plan, EndOfData::wrap, complete); });
  };
  EXPECT_EQ(
      refusal(complete),
      "no shard holds the 121 tokens of one step: the largest of 2 shards holds 100; take fewer or shorter sequences, "
      "or larger shards");
  EXPECT_EQ(refusal(!complete), "");
}

}  // namespace
}  // namespace nanorun
