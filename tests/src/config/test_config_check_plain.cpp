// Rules of a plain residual stream, of rows, and of the optimizers that it is trained with.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "src/config/config.hpp"
#include "tests/support/deck_errors.hpp"

namespace nanorun {
namespace {

// Everything that a plain stream can have.
const char* const deck = R"(
[model]
layers = 6
residual = "plain"
value_path = "none"
embedding_norm = false
norm_gains = true
biases = true
tied_head = true
softcap_kind = "none"
[train]
length = 4096
warmup = 10
cooldown_shape = "cosine"
[validation]
length = 4096
tokens = 0
[data]
train = ["a.h5"]
packing = "rows"
row_length = 1024
[optimizer]
matrix_rule = "adam"
decay_kind = "plain"
)";

/// The messages on the rules that the overrides break; empty where they break none.
std::string broken(const std::vector<std::string>& overrides, const std::string& text = deck) {
  return error_of([&] { check_config(parse_deck(text, "d.toml", overrides), 1); }, ExitCode::usage);
}

void expect_broken(const std::vector<std::string>& overrides, const std::string& message,
                   const std::string& text = deck) {
  const std::string error = broken(overrides, text);
  EXPECT_NE(error.find(message), std::string::npos) << "\"" << error << "\" lacks \"" << message << "\"";
}

TEST(CheckPlain, TakesAllOfIt) { EXPECT_EQ(broken({}), ""); }

TEST(CheckPlain, RefusesWhatOtherStreamsHave) {
  expect_broken({"model.value_path=embeddings"}, "model.residual = \"plain\" needs model.value_path = \"none\"");
  expect_broken({"model.value_path=first"}, "model.residual = \"plain\" needs model.value_path = \"none\"");
  expect_broken({"model.smear=true"}, "model.smear needs model.residual = \"scaled\"");
  expect_broken({"model.gated_layers=1"}, "model.gated_layers needs model.residual = \"scaled\"");
  for (const char* key : {"model.biases=false", "model.norm_gains=false"})
    expect_broken({"train.mlp_precision=fp8", key}, "computes neither model.biases nor model.norm_gains");
  EXPECT_EQ(broken({"train.mlp_precision=fp8", "model.biases=false", "model.norm_gains=false"}), "");
}

TEST(CheckPlain, ABiasOfTheHeadIsNotInFp8) {
  EXPECT_EQ(broken({"model.head_bias=true", "head.precision=bf16"}), "");
  expect_broken({"model.head_bias=true", "head.precision=fp8"}, "model.head_bias needs a LM head that is not in FP8");
}

TEST(CheckPlain, OtherStreamsRefuseWhatItHas) {
  for (const char* key :
       {"model.embedding_norm=false", "model.norm_gains=true", "model.biases=true", "model.head_bias=true"}) {
    const std::string name(key, std::string_view(key).find('='));
    const std::string message = "needs model.residual = \"plain\"";
    const std::string error = broken({key}, "[data]\ntrain = [\"a.h5\"]\n[validation]\ntokens = 0\n");
    EXPECT_NE(error.find(name), std::string::npos) << error;
    EXPECT_NE(error.find(message), std::string::npos) << error;
  }
}

TEST(CheckRows, LengthsAreWholeRows) {
  expect_broken({"data.row_length=1000", "validation.length=128000"},
                "train.length = 4096 must be a multiple of data.row_length = 1000");
  expect_broken({"validation.length=1536", "validation.tokens=3072", "data.validation=b.h5"},
                "validation.length = 1536 must be a multiple of data.row_length = 1024");
  EXPECT_EQ(broken({"validation.length=1536"}), "") << "without validation";
  EXPECT_EQ(broken({"data.row_length=1000", "data.packing=stream"}), "");
}

TEST(CheckOptimizer, AdamOnMatricesUpdatesInEachStep) {
  expect_broken({"optimizer.adam_period=2"}, "optimizer.adam_period = 2 must be 1");
  EXPECT_EQ(broken({"optimizer.adam_period=2", "optimizer.matrix_rule=muon"}), "");
}

TEST(CheckOptimizer, ClippedGradientsAreThoseOfOneStep) {
  EXPECT_EQ(broken({"optimizer.clip_norm=1"}), "");
  expect_broken({"optimizer.clip_norm=1", "optimizer.adam_period=2", "optimizer.matrix_rule=muon"},
                "optimizer.clip_norm = 1 needs optimizer.adam_period = 1");
  std::string tables = deck;
  tables += "[[group]]\ntensors = [\"embedding\"]\nlr = 0.1\nperiod = 2\n";
  expect_broken({"optimizer.clip_norm=1", "model.tied_head=false"},
                "optimizer.clip_norm = 1 clips the gradients of one step: leave out group.0.period", tables);
}

TEST(CheckPlain, QueriesAndKeysMayHaveNoNorm) {
  EXPECT_EQ(broken({"model.qk_norm=false"}), "");
  expect_broken({"model.qk_norm=false", "fp8.qkv.forward=e4m3", "model.biases=false", "model.norm_gains=false"},
                "model.qk_norm = false does not go together with fp8.qkv.forward");
  const std::string scaled =
      "[model]\nresidual = \"scaled\"\nvalue_path = \"none\"\nqk_norm = false\n[data]\ntrain = [\"a.h5\"]\n"
      "[validation]\ntokens = 0\n[window]\nlayers = \"S\"\n";
  EXPECT_EQ(broken({}, scaled), "");
  for (const auto& [key, value] :
       {std::pair("model.paired_layers", "[1]"), {"model.key_offset_layers", "[1]"}, {"model.qk_dims", "[64]"}}) {
    expect_broken({fmt::format("{}={}", key, value)},
                  fmt::format("model.qk_norm = false does not go together with {}", key), scaled);
  }
}

TEST(CheckOptimizer, EachStepOfAnIterationHasThreeNumbers) {
  EXPECT_EQ(broken({"optimizer.orthogonalisation_maps=[2, -1.5, 0.5]", "optimizer.matrix_rule=muon"}), "");
  expect_broken({"optimizer.orthogonalisation_maps=[2, -1.5]", "optimizer.matrix_rule=muon"},
                "has 2 numbers; each step takes three: a, b, c");
}

TEST(CheckOptimizer, AWarmUpEndsWithinTheRun) {
  EXPECT_EQ(broken({"train.steps=10"}), "");
  expect_broken({"train.steps=9"}, "train.warmup = 10 must be at most train.steps = 9");
}

}  // namespace
}  // namespace nanorun
