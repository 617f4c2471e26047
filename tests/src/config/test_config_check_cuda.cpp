// Rules of the CUDA build, which every build can ask.

#include <gtest/gtest.h>

#include "kernels/device/cuda_limits.hpp"
#include "src/config/config_check.hpp"
#include "tests/support/deck_errors.hpp"

using namespace nanorun;
namespace limits = kernels::cuda;

namespace {

std::string fault(const std::vector<std::string>& overrides, Passes passes = Passes::both) {
  Config config = parse_deck("", "d.toml", overrides);
  Rules rules{config, {}};
  check_cuda(rules, passes);
  return error_of([&] { rules.errors.rethrow(ExitCode::usage, Scope::all_ranks); }, ExitCode::usage);
}

/// The deck of a model of so many heads.
std::vector<std::string> wide(int heads) {
  return {fmt::format("model.heads={}", heads), fmt::format("model.width={}", 128 * heads)};
}

}  // namespace

TEST(CheckCuda, DefaultsPass) { EXPECT_EQ(fault({}), ""); }

TEST(CheckCuda, RefusesWhatNoKernelComputes) {
  EXPECT_EQ(fault({"model.head_dim=32", "model.heads=24"}),
            "override model.head_dim=32: model.head_dim = 32: attention on CUDA devices supports 64 and 128 only");
  EXPECT_EQ(fault({"model.head_dim=64", "model.heads=12"}), "");
  EXPECT_EQ(fault({"model.head_dim=64", "model.heads=12", "model.key_offset_layers=1"}),
            "override model.head_dim=64: model.head_dim = 64 must be 128 on CUDA devices, as model.key_offset_layers "
            "names layers");
  EXPECT_EQ(fault({"model.head_dim=64", "model.heads=12", "model.composed_layers=1"}),
            "override model.head_dim=64: model.head_dim = 64 must be 128 on CUDA devices, as model.composed_layers "
            "names layers");
  EXPECT_EQ(fault(wide(limits::max_row / 128)), "");
  EXPECT_EQ(fault(wide(limits::max_row / 128 + 1)),
            "override model.width=4224: model.width = 4224 must be at most 4096 on CUDA devices");
  EXPECT_EQ(fault({"head.precision=fp32"}),
            "override head.precision=fp32: head.precision = \"fp32\" is for CPUs; CUDA devices take \"fp8\" or "
            "\"bf16\"");
  EXPECT_EQ(fault({"model.width=320", "model.heads=5", "model.head_dim=64"}), "");
  EXPECT_EQ(fault({"model.width=320", "model.heads=5", "model.head_dim=64", "fp8.qkv.forward=e4m3"}),
            "override model.width=320: model.width = 320 must be a multiple of 128 on CUDA devices, as [fp8.mlp] or "
            "[fp8.qkv] has forward = \"e4m3\" or train.mlp_precision is \"fp8\"");
  EXPECT_NE(fault({"model.width=320", "model.heads=5", "model.head_dim=64", "train.mlp_precision=fp8"}), "");
  EXPECT_EQ(fault({"model.composition_window=113"}), "");
  EXPECT_EQ(fault({"model.composed_layers=1", "model.composition_window=112"}), "");
  EXPECT_EQ(fault({"model.composed_layers=1", "model.composition_window=113"}),
            "override model.composition_window=113: model.composition_window = 113: composed heads on CUDA devices "
            "take at most 112 keys");
  EXPECT_EQ(fault({"model.qk_dims=96", "model.key_offset_layers=1"}), "");
  EXPECT_EQ(fault({"model.head_dim=64", "model.heads=12", "model.qk_dims=32"}),
            "override model.head_dim=64: model.head_dim = 64 must be 128 on CUDA devices, as model.qk_dims is given");
  EXPECT_EQ(
      fault({"model.qk_dims=[64, 72, 128]"}),
      "override model.qk_dims=[64, 72, 128]: model.qk_dims has 72, which must be a multiple of 16 on CUDA devices");
  EXPECT_EQ(fault({"model.qk_dims=80", "model.key_offset_layers=1"}),
            "override model.qk_dims=80: the widest of model.qk_dims = 80 must be a multiple of 32 on CUDA devices, as "
            "model.key_offset_layers names layers");
  EXPECT_EQ(fault({"model.bigram_rows=100", "model.bigram_columns=24"}), "");
  EXPECT_EQ(fault({"model.bigram_rows=100", "model.bigram_columns=20"}),
            "override model.bigram_columns=20: model.bigram_columns = 20 must be a multiple of 8 on CUDA devices");
}

/// 2^24 rows of all heads, in sequences of training alone.
TEST(CheckCuda, LongSequencesOfManyHeads) {
  std::vector<std::string> deck = wide(8);
  deck.push_back("train.length=2097152");
  EXPECT_EQ(fault(deck), "");
  deck.back() = "train.length=2097280";
  EXPECT_EQ(fault(deck),
            "override train.length=2097280: train.length * model.heads = 2097280 * 8 must be at most 16777216 on CUDA "
            "devices");
  EXPECT_EQ(fault(deck, Passes::forward), "");
}

TEST(CheckCuda, LengthsOfStagesAreNamed) {
  Config config =
      parse_deck("[model]\nheads = 8\nwidth = 1024\n[[stage]]\nshare = 1\nlength = 4194304\n", "d.toml", {});
  Rules rules{config, {}};
  check_cuda(rules, Passes::both);
  EXPECT_EQ(usage_error_of([&] { rules.errors.rethrow(ExitCode::usage, Scope::all_ranks); }),
            "d.toml:6: stage.0.length * model.heads = 4194304 * 8 must be at most 16777216 on CUDA devices");
}

/// There may be any number of coefficient nets, and of mixes that share streams.
TEST(CheckCuda, NetsAndLayersHaveNoLimit) {
  std::vector<std::string> deck = wide(32);
  for (const char* more : {"model.layers=96", "model.residual=scaled", "model.gate_nets=true", "model.gated_layers=1",
                           "model.coefficient_width=20"}) {
    deck.push_back(more);
  }
  EXPECT_EQ(fault(deck), "");
}
