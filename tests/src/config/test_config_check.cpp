// Rules that involve several keys.

#include "src/config/config.hpp"

#include <gtest/gtest.h>

#include "tests/support/deck_errors.hpp"

using namespace nanorun;

namespace {

std::string check_error(const std::vector<std::string>& overrides, int ranks = 1) {
  std::vector<std::string> all = {"data.train=[\"t.h5\"]", "data.validation=[\"v.h5\"]"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return usage_error_of([&] { check_config(parse_deck("", "d.toml", all), ranks); });
}

}  // namespace

TEST(CheckConfig, ReportsAllRulesThatAreBroken) {
  try {
    check_config(parse_deck("[model]\nwidth = 64\n", "d.toml", {"window.layers=LS", "train.sequences=3"}), 2);
    FAIL() << "no error";
  } catch (const Error& error) {
    const Strings starts = {"d.toml:2: model.width = 64 must equal ",
                            "override window.layers=LS: ", "override train.sequences=3: ", "data.train names no",
                            "data.validation names no"};
    const Strings lines = lines_of(error.what());
    ASSERT_EQ(lines.size(), starts.size());
    for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_TRUE(lines[i].starts_with(starts[i])) << lines[i];
  }
}

TEST(CheckConfig, DefaultsWithDataPass) {
  Config config;
  config.data.train = {"t.h5"};
  config.data.validation = {"v.h5"};
  for (const int ranks : {1, 2, 4, 8}) EXPECT_NO_THROW(check_config(config, ranks));
}

TEST(CheckConfig, RefusesKeysThatDoNotFitTogether) {
  EXPECT_EQ(check_error({"model.width=256"}),
            "override model.width=256: model.width = 256 must equal model.heads * model.head_dim = 6 * 128");
  EXPECT_EQ(check_error({"model.layers_without_attention=[12]"}),
            "override model.layers_without_attention=[12]: model.layers_without_attention names layer 12; layers are 0 "
            "to 11");
  EXPECT_EQ(check_error({"model.layers_without_attention=[7, 7]"}),
            "override model.layers_without_attention=[7, 7]: model.layers_without_attention names layer 7 twice");
  EXPECT_EQ(check_error({"model.layers_without_attention=[0]", "model.value_path=first"}),
            "override model.value_path=first: model.value_path = \"first\" needs the values of layer 0, which "
            "model.layers_without_attention excludes");
  EXPECT_EQ(check_error({"model.value_embeddings=7"}),
            "override model.value_embeddings=7: model.value_embeddings = 7 must be at most half of model.layers = 12");
  EXPECT_EQ(check_error({"window.layers=LS"}),
            "override window.layers=LS: window.layers has 2 letters; it needs one, or one for each of the 12 layers");
  EXPECT_EQ(check_error({"window.quantum=64"}),
            "override window.quantum=64: window.quantum = 64 must be a multiple of 128 for window.kind = \"block\"");
  EXPECT_EQ(
      check_error({"validation.tokens=300000"}),
      "override validation.tokens=300000: validation.tokens = 300000 must be a multiple of validation.length = 262144");
  EXPECT_EQ(check_error({"data.train=[]"}), "override data.train=[]: data.train names no token shards");
  EXPECT_EQ(check_error({"data.validation=[]"}),
            "override data.validation=[]: data.validation names no token shards; validation.tokens = 0 trains without "
            "validation");
}

TEST(CheckConfig, RefusesRankCountsThatDoNotDivide) {
  EXPECT_EQ(
      check_error({"train.sequences=12"}, 8),
      "override train.sequences=12: train.sequences = 12 cannot be divided among 8 ranks; rank counts that divide "
      "it: 1, 2, 3, 4, 6, 12");
  EXPECT_EQ(check_error({}, 16),
            "train.sequences = 8 cannot be divided among 16 ranks; rank counts that divide it: 1, 2, 4, 8");
}

TEST(CheckConfig, RefusesStepsThatRepeatSequencesUnequally) {
  Config config = parse_deck("", "d.toml", {"data.train=[\"t.h5\"]", "data.validation=[\"v.h5\"]"});
  config.data.distinct_sequences = 16;
  for (const int sequences : {1, 8, 15, 16, 48, 4096}) {
    config.train.sequences = sequences;
    EXPECT_NO_THROW(check_config(config, 1)) << sequences;
  }
  EXPECT_EQ(check_error({"data.distinct_sequences=16", "train.sequences=24"}),
            "override train.sequences=24: train.sequences = 24 must be a multiple of data.distinct_sequences = 16, or "
            "fewer");
  EXPECT_EQ(
      check_error({"data.distinct_sequences=16", "data.packing=documents"}),
      "override data.distinct_sequences=16: data.distinct_sequences = 16 needs data.packing = \"stream\" or \"rows\"");
}

TEST(CheckConfig, NamesThePlaceOfTheKeyAtFault) {
  const auto error = [](const std::string& text, const std::vector<std::string>& overrides) {
    const std::string deck = "[data]\ntrain = [\"t.h5\"]\nvalidation = [\"v.h5\"]\n" + text;
    return usage_error_of([&] { check_config(parse_deck(deck, "d.toml", overrides), 1); });
  };
  const std::string message = "model.width = 512 must equal model.heads * model.head_dim = 6 * 128";
  EXPECT_EQ(error("[model]\nheads = 6\nwidth = 512\n", {}), "d.toml:6: " + message);
  EXPECT_EQ(error("[model]\nwidth = 512\n", {"model.heads=6"}), "d.toml:5: " + message);
  EXPECT_EQ(error("[model]\nwidth = 768\n", {"model.width=512"}), "override model.width=512: " + message);
  EXPECT_EQ(error("[model]\nlayers = 4\n", {}),
            "d.toml:5: model.value_embeddings = 3 must be at most half of model.layers = 4");
  Config config;
  config.data.validation = {"v.h5"};
  EXPECT_EQ(usage_error_of([&] { check_config(config, 1); }), "data.train names no token shards");
}

TEST(CheckConfig, RefusesTracesOfStepsThatNeverRun) {
  EXPECT_EQ(check_error({"train.steps=20", "trace.json_steps=[19, 20]"}),
            "override trace.json_steps=[19, 20]: trace.json_steps names step 20; the steps are 0 to 19");
}

TEST(CheckConfig, IgnoresKeysThatAreNotUsed) {
  for (const std::vector<std::string>& overrides : {std::vector<std::string>{"window.kind=token", "window.quantum=64"},
                                                    {"trace.enabled=false", "trace.json_steps=[10000000]"},
                                                    {"validation.tokens=0", "data.validation=[]"}}) {
    std::vector<std::string> all = {"data.train=[\"t.h5\"]", "data.validation=[\"v.h5\"]"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    EXPECT_NO_THROW(check_config(parse_deck("", "d.toml", all), 1));
  }
}
