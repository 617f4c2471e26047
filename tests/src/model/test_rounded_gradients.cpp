// Gradients of matrices in bf16 beside those of the same passes in full.

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/support/model_fixture.hpp"
#include "tests/support/record89_mechanisms.hpp"

namespace nanorun {
namespace {

using kernels::Output;

Config plain_with_all() {
  Config config = small_config();
  config.model.residual = Residual::plain;
  config.model.value_path = ValuePath::none;
  config.model.norm_gains = config.model.biases = true;
  config.model.layers_without_attention = {2};
  config.model.tied_head = true;
  return config;
}

Config rounded(Config config) {
  config.optimizer.matrix_gradients = StateFormat::bf16;
  return config;
}

double in_bf16(double x) { return kernels::round_to_bf16(static_cast<float>(x)); }

/// What the backward pass leaves, all in one vector as without rounding.
std::vector<double> gradients_of(const Fixture& f) {
  std::vector<double> all(f.gradients.matrices().begin(), f.gradients.matrices().end());
  all.insert(all.end(), f.gradients.span().begin(), f.gradients.span().end());
  return all;
}

/// Rounds the first elements.
std::vector<double> with_rounded_matrices(std::vector<double> gradients, std::size_t matrices) {
  for (std::size_t i = 0; i < matrices; ++i) gradients[i] = in_bf16(gradients[i]);
  return gradients;
}

void check(const Config& config) {
  Fixture wide(config), narrow(rounded(config));
  const std::size_t matrices = wide.table.matrix_size();
  ASSERT_GT(matrices, 0u);
  ASSERT_EQ(wide.gradients.matrices().size(), 0u);
  ASSERT_EQ(narrow.gradients.matrices().size(), matrices);
  wide.disturb();
  narrow.disturb();
  std::ranges::fill(narrow.gradients.matrices(), std::numeric_limits<double>::quiet_NaN());
  wide.forward_backward(96);
  narrow.forward_backward(96);
  const std::vector<double> once = gradients_of(wide);
  ASSERT_EQ(gradients_of(narrow), with_rounded_matrices(once, matrices));
  std::size_t inexact = 0;
  for (std::size_t i = 0; i < matrices; ++i) inexact += once[i] != in_bf16(once[i]);
  EXPECT_GT(inexact, matrices / 2);
  // The next sequence, whose own gradients are those that a pass leaves which replaces all, is added to the rounded.
  std::ranges::rotate(narrow.tokens, narrow.tokens.begin() + 7);
  wide.tokens = narrow.tokens;
  wide.forward_backward(96);
  const std::vector<double> second = gradients_of(wide);
  narrow.forward_backward(96, Output::accumulate);
  const std::vector<double> both = gradients_of(narrow);
  for (std::size_t i = 0; i < matrices; ++i) ASSERT_EQ(both[i], in_bf16(in_bf16(once[i]) + second[i])) << i;
}

TEST(RoundedGradients, AreThoseOfTheSamePassRoundedAfterEachSequence) {
  check(small_config());
  check(plain_with_all());
  Config record89 = small_config();
  add_small_record89(record89);
  check(record89);
  Config in_fp8 = small_config();
  in_fp8.train.mlp_precision = MlpPrecision::fp8;
  check(in_fp8);
}

TEST(RoundedGradients, RecomputedBlocksGiveTheSame) {
  Config config = rounded(plain_with_all());
  Fixture kept(config);
  config.train.recompute = Recompute::block;
  Fixture formed_again(config);
  kept.disturb();
  formed_again.disturb();
  kept.forward_backward(96);
  formed_again.forward_backward(96);
  EXPECT_EQ(gradients_of(kept), gradients_of(formed_again));
}

}  // namespace
}  // namespace nanorun
