// [fp8.<product>]: sections in a section, and their rules.

#include <gtest/gtest.h>

#include "src/config/config.hpp"
#include "tests/support/deck_errors.hpp"

namespace nanorun {
namespace {

const char* const deck = R"([fp8.mlp]
forward = "e4m3"
gradient = "e5m2"
scales = "fixed"
weight_scales = "delayed"
scale_g = 0.015625
margin = 1.03

[data]
train = ["a.h5"]
[validation]
tokens = 0

[fp8.qkv]
forward = "e4m3"
scale_x = 0.25
scales = "fixed"
)";

Config parsed(const std::vector<std::string>& overrides = {}, const std::string& text = deck) {
  return parse_deck(text, "d.toml", overrides);
}

std::string broken(const std::vector<std::string>& overrides, const std::string& text = deck) {
  return error_of([&] { check_config(parsed(overrides, text), 1); }, ExitCode::usage);
}

TEST(ConfigFp8, SectionsAreReadAndOverridden) {
  const Config config = parsed({"fp8.qkv.gradient=e4m3", "fp8.mlp.margin=1.25"});
  EXPECT_EQ(config.fp8.mlp.forward, Fp8Forward::e4m3);
  EXPECT_EQ(config.fp8.mlp.gradient, Fp8Gradient::e5m2);
  EXPECT_EQ(config.fp8.mlp.scales, Fp8Scales::fixed);
  EXPECT_EQ(config.fp8.mlp.weight_scales, Fp8WeightScales::delayed);
  EXPECT_EQ(config.fp8.mlp.scale_g, 1.0 / 64);
  EXPECT_EQ(config.fp8.mlp.margin, 1.25);
  EXPECT_EQ(config.fp8.qkv.scale_x, 0.25);
  EXPECT_EQ(config.fp8.qkv.gradient, Fp8Gradient::e4m3);
  EXPECT_EQ(broken({}), "");
  EXPECT_EQ(parsed({}, "fp8 = {mlp = {forward = \"e4m3\"}}\n").fp8.mlp.forward, Fp8Forward::e4m3);
  EXPECT_EQ(parsed({}, "fp8.qkv.forward = \"e4m3\"\n").fp8.qkv.forward, Fp8Forward::e4m3);
}

TEST(ConfigFp8, ResolvedDecksReadBack) {
  const std::string text = to_toml(parsed());
  EXPECT_NE(text.find("\n[fp8.mlp]\nforward = \"e4m3\""), std::string::npos);
  EXPECT_EQ(to_toml(parsed({}, text)), text);
  EXPECT_TRUE(is_resolved_deck(text));
  const auto changes = deck_changes(text, parsed({"fp8.mlp.gradient=e4m3"}));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].text, "fp8.mlp.gradient: \"e5m2\" -> \"e4m3\"");
  EXPECT_EQ(changes[0].role, Role::trains);
}

/// An older deck knows none of it.
TEST(ConfigFp8, OlderDecksCountAsUnchanged) {
  EXPECT_TRUE(deck_changes("[train]\nsteps = 5\n", parsed({"train.steps=5"}, "")).empty());
}

TEST(ConfigFp8, ErrorsNameThePlace) {
  const auto error = [](const std::string& text, const std::vector<std::string>& overrides = {}) {
    return error_of([&] { parsed(overrides, text); }, ExitCode::usage);
  };
  EXPECT_EQ(error("[fp8.mlp]\nforwards = 1\n"),
            "d.toml:2: unknown key fp8.mlp.forwards; nearest known key: fp8.mlp.forward");
  EXPECT_EQ(error("[fp8.mpl]\nforward = \"e4m3\"\n"),
            "d.toml:1: unknown section [fp8.mpl]; nearest known section: [fp8.mlp]");
  EXPECT_NE(error("[fp8]\nforward = \"e4m3\"\n"), "");
  EXPECT_NE(error("[[fp8]]\nforward = \"e4m3\"\n"), "");
  EXPECT_EQ(error("[fp8.qkv]\ngradient = \"e3m4\"\n"),
            "d.toml:2: fp8.qkv.gradient: got 'e3m4', allowed: one of \"working\" \"e4m3\" \"e5m2\"");
  EXPECT_NE(error("", {"fp8.mlp=3"}), "");
  EXPECT_NE(error("", {"fp8.qvk.forward=e4m3"}), "");
}

TEST(ConfigFp8, RulesOfProducts) {
  EXPECT_EQ(broken({"fp8.mlp.forward=working"}), "d.toml:3: fp8.mlp.gradient needs fp8.mlp.forward = \"e4m3\"");
  EXPECT_EQ(broken({"fp8.qkv.scales=exact"}), "d.toml:16: fp8.qkv.scale_x needs fp8.qkv.scales = \"fixed\"");
  EXPECT_EQ(broken({"fp8.mlp.gradient=working"}),
            "d.toml:6: fp8.mlp.scale_g needs fp8.mlp.gradient = \"e4m3\" or \"e5m2\"");
  EXPECT_EQ(
      broken({"train.mlp_precision=fp8"}),
      "d.toml:2: fp8.mlp.forward = \"e4m3\" and train.mlp_precision = \"fp8\" are two rules for the same products: "
      "set one");
  EXPECT_EQ(
      broken({"train.mlp_precision=fp8", "fp8.mlp.forward=working", "fp8.mlp.gradient=working", "fp8.mlp.scale_g=0"}),
      "")
      << "QKV may be quantised beside it";
  const std::vector<std::string> plain{"fp8.mlp.forward=working", "fp8.mlp.gradient=working", "fp8.mlp.scale_g=0",
                                       "model.residual=plain",    "model.value_path=none",    "model.norm_gains=true"};
  EXPECT_NE(broken(plain).find("fp8.qkv.forward = \"e4m3\" computes neither model.biases nor model.norm_gains"),
            std::string::npos);
}

}  // namespace
}  // namespace nanorun
