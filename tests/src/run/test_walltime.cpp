#include "src/run/walltime.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace nanorun {
namespace {

TEST(Walltime, LeavesHalfAsMuchAgainAndTheTimeToEnd) {
  EXPECT_DOUBLE_EQ(seconds_to_leave({.step = 4, .validation = 6, .checkpoint = 10}, 0), 30);
  EXPECT_DOUBLE_EQ(seconds_to_leave({.step = 4, .validation = 6, .checkpoint = 10}, 3), 33);
}

TEST(Walltime, NeverLeavesMoreThanTwiceWhatIsForeseen) {
  EXPECT_DOUBLE_EQ(seconds_to_leave({.step = 0.5, .checkpoint = 1}, 1), 3);
  EXPECT_DOUBLE_EQ(seconds_to_leave({.step = 0.01, .checkpoint = 0.02}, 1), 0.06);
  EXPECT_DOUBLE_EQ(seconds_to_leave({}, 1), 0);
}

TEST(Walltime, NoLimitStopsNothing) { EXPECT_FALSE(must_stop(0, 1e9, {.step = 1e9}, 1)); }

TEST(Walltime, NothingForeseenStopsAtTheLimit) {
  EXPECT_FALSE(must_stop(10, 10, {}, 1));
  EXPECT_TRUE(must_stop(10, 10.1, {}, 1));
}

TEST(Walltime, RecentStepsCountByTheLongest) {
  PartTimes times;
  EXPECT_EQ(times.step(1), 0);
  times.add_step(9, 1);
  for (int i = 0; i < 15; ++i) times.add_step(1, 1);
  EXPECT_DOUBLE_EQ(times.step(1), 9);
  times.add_step(1, 1);
  EXPECT_DOUBLE_EQ(times.step(1), 1) << "the disturbance is forgotten";
}

TEST(Walltime, LongerSequencesOfALaterStageTakeLonger) {
  PartTimes times;
  times.add_step(2, 10);
  EXPECT_DOUBLE_EQ(times.step(30), 6);
  EXPECT_DOUBLE_EQ(times.step(5), 2);
  times.add_step(3, 30);
  EXPECT_DOUBLE_EQ(times.step(30), 6);
}

TEST(Walltime, FirstValidationTakesAsLongAsTheForwardPassOfItsTokens) {
  PartTimes times;
  EXPECT_EQ(times.validation(100), 0);
  times.add_step(6, 10);
  EXPECT_DOUBLE_EQ(times.validation(20), 4);
  times.add_validation(7, 20);
  EXPECT_DOUBLE_EQ(times.validation(20), 7);
  EXPECT_DOUBLE_EQ(times.validation(40), 14);
}

TEST(Walltime, ALargeFileIsForetoldByTheRateBetweenTwoTrials) {
  EXPECT_DOUBLE_EQ(seconds_of_file(1000, {.seconds = 1, .bytes = 10}, {.seconds = 2, .bytes = 110}), 10.9);
  EXPECT_DOUBLE_EQ(seconds_of_file(110, {.seconds = 1, .bytes = 10}, {.seconds = 2, .bytes = 110}), 2)
      << "the trial is the file";
  EXPECT_DOUBLE_EQ(seconds_of_file(1000, {.seconds = 3, .bytes = 10}, {.seconds = 2, .bytes = 110}), 2)
      << "the small one was disturbed";
  EXPECT_DOUBLE_EQ(seconds_of_file(1000, {.seconds = 1, .bytes = 10}, {.seconds = 2, .bytes = 10}), 2);
}

/// Parts that take up to a quarter longer than they did before.
class Times {
 public:
  explicit Times(unsigned seed) : random_(seed) {
    std::uniform_real_distribution<double> length(0.01, 20);
    for (double* usual : {&step_, &validation_, &checkpoint_}) *usual = length(random_);
  }
  double step() { return varied(step_); }
  double validation() { return varied(validation_); }
  double checkpoint() { return varied(checkpoint_); }

 private:
  double varied(double usual) { return usual * std::uniform_real_distribution<double>(0.8, 1)(random_); }
  std::mt19937 random_;
  double step_ = 0, validation_ = 0, checkpoint_ = 0;
};

/// A run of many steps, with validations and checkpoints now and then, ends before the limit, and not earlier before
/// it than twice what it could foresee.
TEST(Walltime, RunsEndBeforeTheLimitAndNotMuchBefore) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    Times takes(seed);
    PartTimes times;
    const int validates_every = 1 + seed % 7, saves_every = 1 + seed % 5;
    const double limit = 1000;
    double now = takes.step();
    times.add_step(now, 1);
    times.add_checkpoint(takes.checkpoint());
    double twice = 0;
    bool saved = false;
    for (int done = 1;; ++done) {
      Foreseen ahead{.checkpoint = times.checkpoint()};
      if (done % validates_every == 0) {
        ahead.validation = times.validation(1);
        twice = 2 * ahead.total();
        if (must_stop(limit, now, ahead, 0)) break;
        const double seconds = takes.validation();
        times.add_validation(seconds, 1);
        now += seconds;
      }
      if (done % saves_every == 0) {
        const double seconds = takes.checkpoint();
        times.add_checkpoint(seconds);
        now += seconds;
        saved = true;
      }
      ahead = {.step = times.step(1), .checkpoint = times.checkpoint()};
      twice = 2 * ahead.total();
      if (must_stop(limit, now, ahead, 0)) break;
      const double seconds = takes.step();
      times.add_step(seconds, 1);
      now += seconds;
      saved = false;
    }
    if (!saved) now += takes.checkpoint();
    EXPECT_GE(now, limit - twice) << "seed " << seed;
    EXPECT_LE(now, limit) << "seed " << seed;
  }
}

}  // namespace
}  // namespace nanorun
