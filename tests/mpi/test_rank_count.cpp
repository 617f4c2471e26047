// One deck gives the same training on any number of ranks, and on CPUs the same bits on the same number.

#include <gtest/gtest.h>

#include <random>

#include "tests/support/environment.hpp"
#include "tests/support/tiny_training.hpp"

namespace nanorun {
namespace {

constexpr int steps = 20;

/// Between losses of different rank counts, relative. On devices weights are rounded to 8 bits and atomics add in no
/// fixed order: what test_golden allows there in the losses.
constexpr double tolerance = ops::on_host ? 1e-5 : 2e-3;

Config small_config() {
  Config config;
  config.model.vocabulary = 300;
  config.model.width = ops::on_host ? 32 : 128;
  config.model.heads = ops::on_host ? 2 : 1;
  config.model.head_dim = ops::on_host ? 16 : 128;
  config.model.layers = 6;
  config.model.layers_without_attention = {3};
  config.model.attention_scale = 0.12;
  config.head.precision = ops::on_host ? HeadChoice::fp32 : HeadChoice::bf16;
  config.window.layers = "LSSSSL";
  config.train.steps = steps;
  config.train.sequences = 4;
  config.train.length = 256;
  config.validation.length = 256;
  return config;
}

/// Tokens with structure to learn: mostly the previous token plus one.
std::vector<kernels::Token> tokens_of(const Config& config) {
  std::mt19937 generator(11);
  std::vector<kernels::Token> tokens(static_cast<std::size_t>(steps) * config.train.sequences * config.train.length +
                                     1);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const unsigned draw = generator();
    tokens[i] = draw % 97 == 0 ? 299 : draw % 3 == 0 || i == 0 ? draw / 3 % 299 : (tokens[i - 1] + 1) % 299;
  }
  return tokens;
}

/// Losses of a run on the first `ranks` ranks, known to all ranks.
std::vector<double> losses_on(int ranks) {
  const Config config = small_config();
  MPI_Comm group;
  MPI_Comm_split(test_comm().handle(), test_comm().rank() < ranks ? 0 : MPI_UNDEFINED, test_comm().rank(), &group);
  std::vector<double> losses(steps);
  if (group != MPI_COMM_NULL) {
    {
      Comm comm(group);
      losses = TinyTraining(config, tokens_of(config), 299, comm).run(steps);
    }
    MPI_Comm_free(&group);
  }
  test_comm().broadcast(std::as_writable_bytes(std::span(losses)));
  return losses;
}

TEST(RankCount, LossesAgreeOnOneTwoAndFourRanks) {
  SKIP_WITHOUT_DEVICES();
  const std::vector<double> one = losses_on(1);
  EXPECT_LT(one.back(), one.front() - 0.5);
  for (int ranks = 2; ranks <= test_comm().size(); ranks *= 2) {
    const std::vector<double> many = losses_on(ranks);
    double worst = 0;
    for (int s = 0; s < steps; ++s) {
      worst = std::max(worst, std::abs(many[s] - one[s]) / one[s]);
      EXPECT_NEAR(many[s], one[s], tolerance * one[s]) << "step " << s << ", " << ranks << " ranks";
    }
    if (test_comm().root()) std::printf("largest relative difference, %d ranks: %.1e\n", ranks, worst);
  }
}

TEST(RankCount, TheSameRankCountGivesTheSameBits) {
  if (!ops::on_host) GTEST_SKIP() << "devices add gradients of value embeddings in no fixed order";
  EXPECT_EQ(losses_on(test_comm().size()), losses_on(test_comm().size()));
}

}  // namespace
}  // namespace nanorun
