#include "src/optimizer/update_steps.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace nanorun {
namespace {

/// Updates are counted one by one.
void expect_counts(const UpdateSteps& updates, long steps) {
  std::vector<long> at;
  for (long step = 0; step < steps; ++step) {
    EXPECT_EQ(updates.before(step), static_cast<long>(at.size())) << step;
    if (updates.updates_at(step)) at.push_back(step);
  }
  ASSERT_FALSE(at.empty());
  EXPECT_EQ(updates.first(), at.front());
  EXPECT_DOUBLE_EQ(updates.per_step(steps), static_cast<double>(at.size()) / static_cast<double>(steps));
}

TEST(UpdateSteps, CountsUpdates) {
  for (const UpdateSteps& updates : {UpdateSteps{},
                                     {2, 2},
                                     {3, 3},
                                     {2, 4, 12},
                                     {2, 4, 13},
                                     {2, 4, 14},
                                     {1, 3, 4},
                                     {2, 4, 0},
                                     {2, 4, 1},
                                     {4, 8, 3},
                                     {3, 6, 5}}) {
    SCOPED_TRACE(testing::Message() << updates.period << " " << updates.late_period << " " << updates.late_from);
    expect_counts(updates, 48);
  }
}

/// The tables of pull request 349 of the speedrun: every second step before step 336, then every fourth.
TEST(UpdateSteps, ArePublishedOnes) {
  const UpdateSteps tables{2, 4, 336};
  EXPECT_TRUE(tables.updates_at(335));
  for (const long step : {336, 337, 338}) EXPECT_FALSE(tables.updates_at(step)) << step;
  EXPECT_TRUE(tables.updates_at(339));
  EXPECT_TRUE(tables.updates_at(1239));
  EXPECT_FALSE(tables.updates_at(1240));
  EXPECT_EQ(tables.before(1241), 168 + 226);
  EXPECT_TRUE(tables.changes());
  EXPECT_FALSE((UpdateSteps{2, 2}).changes());
}

}  // namespace
}  // namespace nanorun
