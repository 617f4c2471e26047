#include "src/data/candidates.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "src/base/error.hpp"
#include "src/config/schedule.hpp"

namespace nanorun {
namespace {

using kernels::Token;

std::vector<std::int32_t> draw(CandidateSampler& sampler, int count, const std::vector<Token>& targets, int start) {
  std::vector<std::int32_t> candidates(count, -2);
  sampler.draw(candidates, targets, start);
  return candidates;
}

TEST(Candidates, AreTheTargetsAndTheNextOthersOfTheWalk) {
  CandidateSampler sampler(128);
  // From column 5 of the walk on: 20011 k mod 128 = 43 k mod 128 = 87, 2, 45, 88, 3, ...
  EXPECT_EQ(draw(sampler, 6, {45, 7, 45, 127}, 5), (std::vector<std::int32_t>{2, 7, 45, 87, 88, 127}));
  EXPECT_EQ(sampler.index(7), 1);
  EXPECT_EQ(sampler.index(127), 5);
  EXPECT_EQ(sampler.index(3), CandidateSampler::none);
  EXPECT_EQ(draw(sampler, 2, {9, 8}, 5), (std::vector<std::int32_t>{8, 9}));
  EXPECT_EQ(sampler.index(7), CandidateSampler::none) << "of the draw before";
}

TEST(Candidates, AreAllColumnsWhereThereAreAsMany) {
  CandidateSampler sampler(65536);
  std::vector<std::int32_t> all(65536);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(draw(sampler, 65536, {3, 65535}, 40000), all);
}

TEST(Candidates, FewerThanTargetsAreRefused) {
  CandidateSampler sampler(128);
  EXPECT_THROW(draw(sampler, 2, {1, 2, 3}, 0), Error);
  EXPECT_THROW(draw(sampler, 129, {1}, 0), Error);
  EXPECT_EQ(distinct_tokens(std::vector<Token>{65535, 0, 65535, 4}), 3);
}

/// With the size of GPT-2's vocabulary, each column comes about as often as any other.
TEST(Candidates, ChangeWithStepAndSequence) {
  Config config;
  config.train.steps = 100;
  config.train.sequences = 8;
  config.stage.resize(2);
  for (StageConfig& stage : config.stage) stage.share = 0.5;
  config.stage[0].candidates = 10240;
  EXPECT_EQ(most_candidates(config), 10240);
  EXPECT_EQ(candidate_draw(config, 50, 3).count, 0);
  std::set<int> starts;
  std::vector<int> times(50304);
  CandidateSampler sampler(50304);
  for (int step = 0; step < 50; ++step) {
    for (int sequence = 0; sequence < 8; ++sequence) {
      const CandidateDraw where = candidate_draw(config, step, sequence);
      EXPECT_EQ(where.count, 10240);
      starts.insert(where.start);
      for (const std::int32_t column : draw(sampler, where.count, {}, where.start)) ++times[column];
    }
  }
  EXPECT_EQ(starts.size(), 400u);
  const auto [least, most] = std::ranges::minmax(times);
  EXPECT_GE(least, 80);  // of 400 x 10240 / 50304 = 81.4 on average
  EXPECT_LE(most, 82);
}

}  // namespace
}  // namespace nanorun
