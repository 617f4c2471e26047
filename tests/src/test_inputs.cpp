// The decks of inputs/ and the reference of their keys.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/config.hpp"
#include "src/schedule.hpp"

using namespace nanorun;

namespace {

const std::filesystem::path source_folder = NANORUN_SOURCE_DIR;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Config read_deck(const std::string& name) {
  const std::filesystem::path path = source_folder / "inputs" / (name + ".toml");
  return parse_deck(read_file(path), path.string(), {});
}

}  // namespace

TEST(Inputs, AllDecksPassOnEveryUsualRankCount) {
  int decks = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_folder / "inputs")) {
    if (entry.path().extension() != ".toml") continue;
    ++decks;
    const std::string name = entry.path().stem().string();
    const Config config = read_deck(name);
    EXPECT_EQ(config.run.name, name);
    for (const int ranks : {1, 2, 4, 8}) {
      EXPECT_NO_THROW(check_config(config, ranks)) << name << " on " << ranks << " ranks";
    }
  }
  EXPECT_EQ(decks, 5);
}

TEST(Inputs, Record13HasThePublishedSchedule) {
  const Config config = read_deck("record13");
  EXPECT_EQ(config.train.steps, 1750);
  EXPECT_EQ(lr_factor(config.train, 1110), 1.0);
  EXPECT_LT(lr_factor(config.train, 1111), 1.0);
  EXPECT_NEAR(lr_factor(config.train, 1430), 0.5, 1e-12);
  EXPECT_NEAR(lr_factor(config.train, 1750), 0.0, 1e-12);
  for (long s = 0; s <= 1750; ++s) {
    const int published = 64 * ((1728 * s + 64 * 1750) / (64 * 1750));
    ASSERT_EQ(long_window(config.window, s, config.train.steps), published) << "step " << s;
  }
}

TEST(Inputs, Record18HasThePublishedSchedule) {
  const Config config = read_deck("record18");
  EXPECT_EQ(config.train.steps, 1390);
  EXPECT_NEAR(lr_factor(config.train, 1112), 0.5, 1e-12);
  EXPECT_NEAR(lr_factor(config.train, 1390), 0.0, 1e-12);
  for (long s = 0; s <= 1390; ++s) {
    const int published = 128 * ((128 * (1390 - s) + 1856 * s) / (128 * 1390));
    ASSERT_EQ(long_window(config.window, s, config.train.steps), published) << "step " << s;
  }
}

TEST(Inputs, Records20And21HaveThePublishedSchedule) {
  for (const auto& [name, steps] : {std::pair{"record20", 1393L}, {"record21", 1770L}}) {
    const Config config = read_deck(name);
    EXPECT_EQ(config.train.steps, steps);
    EXPECT_NEAR(lr_factor(config.train, steps), 0.1, 1e-12);
    for (long s = 0; s <= steps; ++s) {
      const long published = 128 * std::max(1L, (1728 * s + 128 * steps - 1) / (128 * steps));
      ASSERT_EQ(long_window(config.window, s, steps), published) << name << ", step " << s;
    }
    std::vector<int> long_layers;
    for (int layer = 0; layer < config.model.layers; ++layer) {
      if (is_long_layer(config.window, layer)) long_layers.push_back(layer);
    }
    EXPECT_EQ(long_layers, (std::vector<int>{0, 4, 7, 11}));
  }
}

TEST(Inputs, RecordsHaveThePublishedArithmetic) {
  for (const char* name : {"record13", "record18", "record20", "record21"}) {
    const Config config = read_deck(name);
    EXPECT_EQ(config.model.norm_eps, std::ldexp(1.0, -7)) << name;
    EXPECT_EQ(padded_vocabulary(config.model), 50304) << name;
    EXPECT_EQ(config.validation.tokens, 10485760) << name;
    EXPECT_EQ(config.train.sequences, 8) << name;
  }
  EXPECT_EQ(read_deck("record20").head.scale_w, std::ldexp(1.0, 5));
  EXPECT_EQ(read_deck("record20").head.scale_g, std::ldexp(1.0, 29));
  EXPECT_EQ(read_deck("record20").head.scale_g_length, 65536);
  EXPECT_EQ(read_deck("record21").head.scale_w, std::ldexp(1.0, 9));
  EXPECT_EQ(read_deck("record21").head.scale_g, std::ldexp(1.0, 19));
  EXPECT_EQ(read_deck("record21").head.scale_g_length, 49152);
  EXPECT_EQ(read_deck("record21").model.init_scale, std::sqrt(3.0) / 2);
}

TEST(Inputs, GradientScalesOfFp8BelongToTheLength) {
  for (const char* name : {"record20", "record21"}) {
    const Config config = read_deck(name);
    EXPECT_EQ(config.head.precision, HeadChoice::fp8) << name;
    EXPECT_EQ(config.head.scale_g_length, config.train.length) << name;
    EXPECT_TRUE(config.places.contains("head.scale_g_length")) << name;
  }
}

TEST(Inputs, KeyReferenceIsCurrent) {
  EXPECT_TRUE(read_file(source_folder / "docs/keys.md") == key_reference())
      << "docs/keys.md is stale; renew it with: build/cpu/bin/nanorun keys > docs/keys.md";
}
