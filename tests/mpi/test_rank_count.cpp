// One deck gives the same training on any number of ranks, and the same bits on the same number.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "tests/support/environment.hpp"
#include "tests/support/tiny_training.hpp"

namespace nanorun {
namespace {

constexpr int steps = 20;

/// Between losses of different rank counts, relative: their gradients are added up in another order. On devices weights
/// are rounded to 8 bits: what test_golden allows there in the losses.
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
  config.head.precision = ops::on_host ? LmHeadChoice::fp32 : LmHeadChoice::bf16;
  config.window.layers = "LSSSSL";
  config.train.steps = steps;
  config.train.sequences = std::max(4, test_comm().size());
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
std::vector<double> losses_on(int ranks, const Config& config = small_config()) {
  MPI_Comm group;
  MPI_Comm_split(test_comm().handle(), test_comm().rank() < ranks ? 0 : MPI_UNDEFINED, test_comm().rank(), &group);
  std::vector<double> losses(steps);
  if (group != MPI_COMM_NULL) {
    {
      Comm comm(group);
      TinyTraining training(config, tokens_of(config), 299, comm);
      training.notes_rows = true;
      losses = training.run(steps);
    }
    MPI_Comm_free(&group);
  }
  test_comm().broadcast(std::as_writable_bytes(std::span(losses)));
  return losses;
}

/// Trains on all ranks, on one node and on several, the last of them with fewer ranks where it happens so, and compares
/// with the losses of one rank. Each number of ranks is an entry of its own.
void expect_same_training(const Config& config, double relative, const char* what, const std::vector<double>& one) {
  EXPECT_LT(one.back(), one.front() - 0.5);
  const int ranks = test_comm().size();
  const auto compare = [&](int on_node) {
    Config many_ranks = config;
    many_ranks.comm.ranks_per_node = on_node;
    const std::vector<double> many = losses_on(ranks, many_ranks);
    double worst = 0;
    for (int s = 0; s < steps; ++s) {
      worst = std::max(worst, std::abs(many[s] - one[s]) / one[s]);
      EXPECT_NEAR(many[s], one[s], relative * one[s])
          << "step " << s << ", " << ranks << " ranks, " << on_node << " on a node";
    }
    if (test_comm().root())
      std::printf("largest relative difference%s, %d ranks, %d on a node: %.1e\n", what, ranks, on_node, worst);
  };
  if (ranks > 1) compare(ranks);
  for (const int on_node : {1, 2, 3}) {
    if (ranks <= 4 ? on_node < ranks : on_node == 3) compare(on_node);
  }
}

void expect_same_training(const Config& config, double relative, const char* what) {
  expect_same_training(config, relative, what, losses_on(1, config));
}

TEST(RankCount, LossesAgreeOnAnyNumberOfRanks) {
  SKIP_WITHOUT_DEVICES();
  expect_same_training(small_config(), tolerance, "");
}

/// Branches that start at zero, on a stream of sums by learned factors: their factors' gradients are zero then, not the
/// rounding of sums, of which Adam would make whole steps: then losses would differ by 1e-6 and more.
TEST(RankCount, LossesOfBranchesThatStartAtZeroAgreeOnAnyNumberOfRanks) {
  SKIP_WITHOUT_DEVICES();
  Config config = small_config();
  ModelConfig& model = config.model;
  model.residual = Residual::scaled;
  model.value_path = ValuePath::none;
  model.smear = true;
  model.bigram_rows = 101;
  model.bigram_sign_rows = 16;
  model.skip_from = {1};
  model.skip_to = {3};
  config.optimizer.adam_period = 1;
  expect_same_training(config, ops::on_host ? 1e-7 : tolerance, ", zero branches");
}

/// With gates that Muon updates in every step, others that Adam updates in every other one, and an outer step.
TEST(RankCount, LossesWithGatesByMuonAndAnOuterStepAgreeOnAnyNumberOfRanks) {
  SKIP_WITHOUT_DEVICES();
  Config config = small_config();
  config.model.residual = Residual::scaled;
  config.model.value_path = ValuePath::none;
  config.model.gated_layers = {0, 1, 2, 4, 5};
  config.model.smear = true;
  config.optimizer.adam_period = 2;
  config.optimizer.normuon_beta = 0.9;
  config.optimizer.outer_every = 3;
  const std::vector<double> by_adam = losses_on(1, config);
  config.group = {{{"*_gate"}, 0.05}};
  config.group[0].rule = GroupRule::muon;
  const std::vector<double> by_muon = losses_on(1, config);
  EXPECT_NE(by_muon, by_adam);
  expect_same_training(config, tolerance, ", gates by Muon", by_muon);
}

/// Candidates of the LM head are drawn for a sequence, whichever rank has it.
TEST(RankCount, LossesOverCandidatesAgreeOnAnyNumberOfRanks) {
  SKIP_WITHOUT_DEVICES();
  Config config = small_config();
  config.stage.resize(1);
  config.stage[0].share = 1;
  config.stage[0].length = config.stage[0].short_window = config.stage[0].long_window = 128;
  const std::vector<double> over_all = losses_on(1, config);
  config.stage[0].candidates = 128;
  const std::vector<double> over_candidates = losses_on(1, config);
  EXPECT_LT(over_candidates.front(), over_all.front());
  expect_same_training(config, tolerance, ", candidates", over_candidates);
  config.model.tied_head = true;
  config.optimizer.adam_period = 2;
  // Differences of rounding grow from step to step at the default rates, faster than without a tied head.
  config.optimizer.lr_head = 0.002;
  config.optimizer.lr_embedding = 0.1;
  expect_same_training(config, tolerance, ", candidates of a tied head");
}

/// With a slow momentum that counts in the second half, and tables that are updated in every fourth step there.
TEST(RankCount, LossesWithTwoMomentaAndLateTablesAgreeOnAnyNumberOfRanks) {
  SKIP_WITHOUT_DEVICES();
  Config config = small_config();
  config.optimizer.adam_period = 2;
  config.optimizer.orthogonalisation = Orthogonalisation::six_maps;
  config.optimizer.normuon_beta = 0.9;
  config.group = {{{"value_embedding.*"}, 0.6}};
  const std::vector<double> before = losses_on(1, config);
  config.optimizer.slow_momentum = 0.98;
  config.optimizer.momentum_mix = 0.5;
  config.optimizer.momentum_mix_from = 10;
  config.group[0].period = 4;
  config.group[0].period_from = 10;
  const std::vector<double> after = losses_on(1, config);
  for (int step = 0; step < steps; ++step) EXPECT_EQ(after[step] == before[step], step <= 10) << step;
  expect_same_training(config, tolerance, ", two momenta and late tables", after);
}

/// The norm is that of all ranks' parts, also of the rows of tables and of the tied head.
TEST(RankCount, LossesWithClippedGradientsAgreeOnAnyNumberOfRanks) {
  SKIP_WITHOUT_DEVICES();
  Config config = small_config();
  config.model.tied_head = true;
  const std::vector<double> before = losses_on(1, config);
  config.optimizer.clip_norm = 0.3;
  const std::vector<double> clipped = losses_on(1, config);
  EXPECT_NE(clipped, before);
  expect_same_training(config, tolerance, ", clipped", clipped);
}

/// With what Adam keeps, and Muon's momenta, in bf16.
TEST(RankCount, LossesWithStateInBf16AgreeOnOneTwoAndFourRanks) {
  SKIP_WITHOUT_DEVICES();
  Config config = small_config();
  config.optimizer.adam_master = config.optimizer.adam_moments = config.optimizer.muon_moments = StateFormat::bf16;
  config.optimizer.adam_period = 2;
  const std::vector<double> narrow = losses_on(1, config);
  EXPECT_NE(narrow, losses_on(1));
  expect_same_training(config, tolerance, " in bf16", narrow);
}

/// Each rank rounds what it sends, and the owner the sum, so the last bits of gradients depend on the ranks.
void expect_same_training_of_rounded_gradients(Config config, const char* what) {
  const std::vector<double> wide = losses_on(1, config);
  config.optimizer.matrix_gradients = StateFormat::bf16;
  const std::vector<double> rounded = losses_on(1, config);
  EXPECT_NE(rounded, wide);
  for (int s = 0; s < steps; ++s) EXPECT_NEAR(rounded[s], wide[s], 1e-3 * wide[s]) << "step " << s;
  expect_same_training(config, ops::on_host ? 5e-4 : tolerance, what, rounded);
}

TEST(RankCount, LossesWithGradientsInBf16AgreeOnAnyNumberOfRanks) {
  SKIP_WITHOUT_DEVICES();
  Config config = small_config();
  config.train.sequences = std::max(8, test_comm().size());
  expect_same_training_of_rounded_gradients(config, ", gradients in bf16");
  config.optimizer.clip_norm = 0.3;
  config.optimizer.muon_moments = StateFormat::bf16;
  config.comm.gradients = kernels::WireFormat::bf16;
  expect_same_training_of_rounded_gradients(config, ", clipped gradients in bf16");
  config.optimizer.matrix_rule = MatrixRule::adam;
  config.optimizer.adam_master = StateFormat::bf16;
  expect_same_training_of_rounded_gradients(config, ", gradients in bf16 for Adam");
}

/// The MLP with fixed and delayed scales, QKV with exact ones and gradients in e4m3.
constexpr Fp8Configs fp8_in_both_passes{
    {Fp8Forward::e4m3, Fp8Gradient::e5m2, Fp8Scales::delayed, Fp8WeightScales::delayed, 0, 1.0 / 64, 1.03},
    {Fp8Forward::e4m3, Fp8Gradient::e4m3, Fp8Scales::fixed, Fp8WeightScales::exact, 0, 1.0 / 448, 1.25}};

/// The maxima that scale the MLP's operands are those of all ranks' sequences. From about step 4 on last bits of the
/// weights, which the order of sums decides, show as other 8-bit values. `tolerances`: of steps 0 to 3, to 9, and
/// later.
void expect_same_training_in_fp8(const Config& config, const char* what, const std::array<double, 3>& tolerances) {
  const std::vector<double> one = losses_on(1, config);
  EXPECT_LT(one.back(), one.front() - 0.5);
  const int ranks = test_comm().size();
  const std::vector<double> many = losses_on(ranks, config);
  double worst[3] = {};
  for (int s = 0; s < steps; ++s) {
    const int phase = s < 4 ? 0 : s < 10 ? 1 : 2;
    worst[phase] = std::max(worst[phase], std::abs(many[s] - one[s]) / one[s]);
    EXPECT_NEAR(many[s], one[s], tolerances[phase] * one[s]) << "step " << s << ", " << ranks << " ranks";
  }
  if (!test_comm().root()) return;
  std::printf("largest relative difference with %s in FP8, %d ranks: %.1e in steps 0 to 3, %.1e to 9, %.1e\n", what,
              ranks, worst[0], worst[1], worst[2]);
}

TEST(RankCount, LossesWithTheMlpInFp8AgreeOnAnyNumberOfRanks) {
  if (!ops::on_host) GTEST_SKIP() << "the MLP in FP8 runs on CPUs alone";
  Config config = small_config();
  config.train.mlp_precision = MlpPrecision::fp8;
  expect_same_training_in_fp8(config, "the MLP", {1e-7, 1e-5, 1e-4});
}

TEST(RankCount, LossesWithBothPassesInFp8AgreeOnAnyNumberOfRanks) {
  if (!ops::on_host) GTEST_SKIP() << "the small model is too narrow for FP8 on devices";
  Config config = small_config();
  config.fp8 = fp8_in_both_passes;
  // Gradients round, too, from the first step on. On one rank, a learning rate that differs by 3e-7 of itself moves
  // these losses by 1.0e-5.
  expect_same_training_in_fp8(config, "the MLP and QKV", {5e-7, 3e-5, 1e-4});
}

/// Each rank finds maxima of its own, and all go on with the largest.
TEST(RankCount, ScalesOfTheMlpAreThoseOfAllRanks) {
  if (!ops::on_host) GTEST_SKIP() << "the MLP in FP8 runs on CPUs alone";
  Config config = small_config();
  config.train.mlp_precision = MlpPrecision::fp8;
  const auto state_after_a_step = [&](Comm& comm) {
    TinyTraining training(config, tokens_of(config), 299, comm);
    training.run(1);
    return training.model.fp8_scales().state();
  };
  const std::vector<double> many = state_after_a_step(test_comm());
  Comm alone(MPI_COMM_SELF);
  const std::vector<double> one = state_after_a_step(alone);
  ASSERT_EQ(one.size(), 10u * config.model.layers);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(many[i], one[i], 1e-6 * one[i]) << i;
}

/// On devices the second run takes the algorithms that were chosen in the first.
TEST(RankCount, TheSameRankCountGivesTheSameBits) {
  SKIP_WITHOUT_DEVICES();
  EXPECT_EQ(losses_on(test_comm().size()), losses_on(test_comm().size()));
}

/// Stages, Adam in every second step, and scales of the MLP: what a pass or an update could leave behind.
TEST(RankCount, AWarmUpChangesNoBit) {
  SKIP_WITHOUT_DEVICES();
  Config config = small_config();
  if (ops::on_host) config.fp8 = fp8_in_both_passes;
  config.optimizer.adam_period = 2;
  config.optimizer.normuon_beta = 0.9;
  config.stage.resize(2);
  for (int i = 0; i < 2; ++i) {
    config.stage[i].share = 0.5;
    config.stage[i].length = 128 * (i + 1);
    config.stage[i].short_window = 128;
    config.stage[i].long_window = 128;
  }
  config.stage[1].candidates = 256;
  enum class Start { cold, warm };
  const auto losses = [&](Start start) {
    TinyTraining training(config, tokens_of(config), 299, test_comm());
    if (start == Start::warm) {
      Trace trace = untraced(test_comm(), test_streams().compute);
      training.warm_up(trace);
      training.optimizer.initialise(config.run.seed);
    }
    return training.run(steps);
  };
  EXPECT_EQ(losses(Start::warm), losses(Start::cold));
}

}  // namespace
}  // namespace nanorun
