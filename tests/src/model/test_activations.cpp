// The memory of activations: what sequences of each length take.

#include "src/model/activations.hpp"

#include <gtest/gtest.h>

#include "tests/support/record_deck.hpp"

namespace nanorun {
namespace {

std::size_t bytes(const Config& config, int length, Mode mode) {
  kernels::WorkspaceAllocator allocator({});
  Activations<float>(config, length, mode, allocator);
  return allocator.used();
}

TEST(Activations, GrowInProportionToTheLength) {
  const Config config = record_deck(21);
  for (const Mode mode : {Mode::training, Mode::evaluation}) {
    const auto grown = static_cast<double>(bytes(config, 262144, mode) - bytes(config, 131072, mode));
    EXPECT_NEAR((bytes(config, 131072, mode) - bytes(config, 65536, mode)) / grown, 0.5, 1e-6)
        << static_cast<int>(mode);
    EXPECT_NEAR((bytes(config, 65536, mode) - bytes(config, 49152, mode)) / grown, 0.125, 1e-6)
        << static_cast<int>(mode);
    EXPECT_NEAR(bytes(config, 131072, mode) / grown, 1, 0.01) << static_cast<int>(mode);
  }
}

TEST(Activations, OfEvaluationTakeOneBlockAndTheSkips) {
  const Config config = record_deck(21);
  // In units of d numbers a token: x0 and the final norm, the outputs of 6 encoder blocks, and of one block x, norm,
  // QKV, mixed values, attention, norm and the hidden units of ratio 4. Beside them stand scalars of a few heads and
  // rows, and the logits of a part of the tokens.
  const std::size_t numbers = 2 + 6 + (1 + 1 + 3 + 1 + 1 + 1 + 4);
  EXPECT_LT(bytes(config, 262144, Mode::evaluation), 1.01 * 262144 * numbers * config.model.width * sizeof(float));
  EXPECT_LT(bytes(config, 262144, Mode::evaluation) / 262144, bytes(config, 49152, Mode::training) / 49152 / 4);
}

/// A plain block keeps two norms of d numbers a token, QKV of 3 d, the heads of d and hidden units of 4 d. What it
/// forms anew lies in the memory of one block for all of them.
TEST(Activations, OfRecomputedBlocksTakeTheirNormsAlone) {
  Config config = record_deck(21);
  config.model.residual = Residual::plain;
  config.model.value_path = ValuePath::none;
  config.model.layers_without_attention = {};
  constexpr int length = 65536;
  const double stream = static_cast<double>(length) * config.model.width * sizeof(float);
  const std::size_t kept = bytes(config, length, Mode::training);
  const auto saved = [&](Recompute kind, const std::vector<int>& layers) {
    config.train.recompute = kind;
    config.train.recompute_layers = layers;
    return static_cast<double>(kept - bytes(config, length, Mode::training)) / stream;
  };
  const int layers = config.model.layers;
  EXPECT_EQ(saved(Recompute::block, {3}), 0);
  EXPECT_NEAR(saved(Recompute::mlp, {3, 4, 5}), 2 * 4, 1e-3);
  EXPECT_NEAR(saved(Recompute::mlp, {}), (layers - 1) * 4, 1e-3);
  EXPECT_NEAR(saved(Recompute::block, {3, 4, 5}), 2 * (3 + 1 + 4), 0.1);  // beside them scalars of heads and rows
  EXPECT_NEAR(saved(Recompute::block, {}), (layers - 1) * (3 + 1 + 4), 0.5);
}

/// The norms of queries and keys keep a factor for each head.
TEST(Activations, OfQueriesAndKeysWithoutNormHaveNoFactors) {
  Config config = record_deck(21);
  constexpr int length = 4096;
  const std::size_t normed = bytes(config, length, Mode::training);
  config.model.qk_norm = false;
  const std::size_t attending = config.model.layers - config.model.layers_without_attention.size();
  EXPECT_EQ(normed - bytes(config, length, Mode::training),
            attending * length * 2 * config.model.heads * sizeof(float));
}

/// The backward pass of the LM head writes d_final_norm, and its scratch takes the place of the gradients of the
/// blocks.
TEST(Activations, GradientsOfBlocksLieInTheWorkspaceAndNoOthers) {
  Config config = record_deck(21);
  config.model.width = 128;
  config.model.heads = 1;
  config.train.length = 256;
  for (const ValuePath path : {ValuePath::embeddings, ValuePath::first}) {
    config.model.value_path = path;
    std::vector<std::byte> memory(bytes(config, config.train.length, Mode::training));
    kernels::WorkspaceAllocator allocator(memory);
    const Activations<float> a(config, config.train.length, Mode::training, allocator);

    struct Range {
      const void *begin, *end;
    };
    const auto range = [](const auto& x) { return Range{x.data, x.data + x.size()}; };
    const auto apart = [](Range x, Range y) { return x.end <= y.begin || y.end <= x.begin; };
    const Range workspace{a.workspace.data(), a.workspace.data() + a.workspace.size()};
    std::vector<Range> gradients = {range(a.d_q), range(a.d_x), range(a.d_x0), range(a.d_hidden)};
    for (const auto& d : a.d_value_rows) gradients.push_back(range(d));
    const void* scratch_end =
        a.workspace.data() + ops::attention_workspace<float>(a.length, config.model.heads, config.model.head_dim);
    for (const Range& gradient : gradients) {
      EXPECT_LE(scratch_end, gradient.begin);
      EXPECT_LE(gradient.end, workspace.end);
      for (const Range& other : gradients) EXPECT_TRUE(&gradient == &other || apart(gradient, other));
    }
    EXPECT_TRUE(apart(workspace, range(a.d_final_norm)));
    EXPECT_TRUE(apart(workspace, range(a.final_norm.n)));
    for (const auto& d : a.d_layer_input) EXPECT_TRUE(!d || apart(workspace, range(d)));
    EXPECT_EQ(a.d_value_rows.size(), path == ValuePath::embeddings ? config.model.value_embeddings : 0u);
    if (path == ValuePath::first) {
      EXPECT_TRUE(apart(workspace, range(a.d_v_first)));
    }
  }
}

}  // namespace
}  // namespace nanorun
