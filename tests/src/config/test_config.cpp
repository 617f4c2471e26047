// What decks say, and how two of them differ.

#include "src/config/config.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "src/config/config_keys.hpp"
#include "tests/support/deck_errors.hpp"

using namespace nanorun;

namespace {

/// Converts to the type of any member, which lets members be counted.
struct Anything {
  template <class T>
  operator T() const;
};

template <class S, class... Members>
constexpr int member_count() {
  if constexpr (requires { S{Members{}..., Anything{}}; }) {
    return member_count<S, Members..., Anything>();
  } else {
    return sizeof...(Members);
  }
}

int rows_of(const std::string& section) {
  return static_cast<int>(std::ranges::count_if(key_table(), [&](const Key& key) { return section == key.section; }));
}

Strings lines_of_changes(const Config& before, const Config& after) {
  return change_lines(deck_changes(to_toml(before), after));
}

/// A deck with the defaults of all keys, also of those of rows.
const std::string rows = "[[stage]]\n[[group]]\n[[average]]\n";

/// Lines of a resolved deck that differ from those of another, by default of the empty deck.
std::vector<std::string> changed_lines(const Config& config, const Config& other = {}) {
  const std::vector<std::string> before = lines_of(to_toml(other)), after = lines_of(to_toml(config));
  EXPECT_EQ(before.size(), after.size());
  std::vector<std::string> changed;
  for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
    if (before[i] != after[i]) changed.push_back(after[i]);
  }
  return changed;
}

}  // namespace

TEST(Config, EmptyDeckGivesDefaults) {
  EXPECT_EQ(parse_deck("", "d.toml", {}).model.width, ModelConfig{}.width);
  EXPECT_EQ(changed_lines(parse_deck("", "d.toml", {})), std::vector<std::string>{});
  EXPECT_EQ(changed_lines(parse_deck(to_toml(Config{}), "d.toml", {})), std::vector<std::string>{});
}

TEST(Config, ReadsEveryType) {
  const Config config = parse_deck(
      "[run]\nname = \"a\"\nseed = 9007199254740993\n"
      "[model]\nvalue_path = \"first\"\nlayers_without_attention = [7, 3]\nsoftcap = 30\nzero_outputs = false\n"
      "[head]\nprecision = \"auto\"\nscale_g = 0.5\n"
      "[data]\ntrain = [\"a*.h5\", \"b.h5\"]\n",
      "d.toml", {});
  EXPECT_EQ(config.run.name, "a");
  EXPECT_EQ(config.run.seed, 9007199254740993);
  EXPECT_EQ(config.model.value_path, ValuePath::first);
  EXPECT_EQ(config.model.layers_without_attention, (std::vector<int>{7, 3}));
  EXPECT_EQ(config.model.softcap, 30.0);
  EXPECT_FALSE(config.model.zero_outputs);
  EXPECT_EQ(config.head.precision, LmHeadChoice::automatic);
  EXPECT_EQ(config.head.scale_g, 0.5);
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"a*.h5", "b.h5"}));
}

TEST(Config, EveryMemberHasARow) {
  EXPECT_EQ(rows_of("run"), member_count<RunConfig>());
  EXPECT_EQ(rows_of("model"), member_count<ModelConfig>());
  EXPECT_EQ(rows_of("head"), member_count<LmHeadConfig>());
  EXPECT_EQ(rows_of("window"), member_count<WindowConfig>());
  EXPECT_EQ(rows_of("train"), member_count<TrainConfig>());
  EXPECT_EQ(rows_of("validation"), member_count<ValidationConfig>());
  EXPECT_EQ(rows_of("data"), member_count<DataConfig>());
  EXPECT_EQ(rows_of("optimizer"), member_count<OptimizerConfig>());
  EXPECT_EQ(rows_of("checkpoint"), member_count<CheckpointConfig>());
  EXPECT_EQ(rows_of("stop"), member_count<StopConfig>());
  EXPECT_EQ(rows_of("trace"), member_count<TraceConfig>());
  EXPECT_EQ(rows_of("comm"), member_count<CommConfig>());
  EXPECT_EQ(rows_of("stage"), member_count<StageConfig>());
  EXPECT_EQ(rows_of("group"), member_count<GroupConfig>());
  EXPECT_EQ(rows_of("average"), member_count<AverageConfig>());
  EXPECT_EQ(rows_of("fp8.mlp"), member_count<Fp8Config>());
  EXPECT_EQ(rows_of("fp8.qkv"), member_count<Fp8Config>());
}

// Every key takes at least one of these values, differing from its default, and changes nothing but its own line.
TEST(Config, EveryKeyIsSetAndReadBack) {
  const std::vector<std::string> values = {"true",
                                           "false",
                                           "256",
                                           "2",
                                           "0.25",
                                           "\"SL\"",
                                           "[5]",
                                           "[\"a.h5\"]",
                                           "\"none\"",
                                           "\"full\"",
                                           "\"token\"",
                                           "\"floor\"",
                                           "\"bf16\"",
                                           "\"wrap\"",
                                           "\"mlp\"",
                                           "\"continue\"",
                                           "\"nccl\"",
                                           "\"accept\"",
                                           "\"scaled\"",
                                           "\"sigmoid\"",
                                           "\"sum\"",
                                           "\"documents\"",
                                           "\"polar_express\"",
                                           "\"quantiles\"",
                                           "\"fp8\"",
                                           "\"adam\"",
                                           "\"plain\"",
                                           "\"muon\"",
                                           "\"cosine\"",
                                           "\"cb_nodes=1\"",
                                           "\"e4m3\"",
                                           "\"delayed\"",
                                           "[0.5]"};
  const Config defaults = parse_deck(rows, "d.toml", {});
  for (const Key& key : key_table()) {
    int taken = 0;
    for (const std::string& value : values) {
      Config config;
      try {
        config = parse_deck(rows, "d.toml", {key.path(0) + "=" + value});
      } catch (const Error&) {
        continue;
      }
      const std::vector<std::string> changed = changed_lines(config, defaults);
      EXPECT_EQ(changed_lines(parse_deck(to_toml(config), "d.toml", {}), defaults), changed) << key.path();
      if (changed.empty()) continue;  // the default
      ASSERT_EQ(changed.size(), 1u) << key.path();
      const std::string number = value + ".0";  // numbers are printed so
      EXPECT_TRUE(changed[0].starts_with(fmt::format("{} = {}", key.name, value)) ||
                  changed[0].starts_with(fmt::format("{} = [{}]", key.name, value)) ||
                  changed[0].starts_with(fmt::format("{} = [{}]", key.name, number)) ||
                  changed[0].starts_with(fmt::format("{} = [5.0]", key.name)))
          << changed[0];
      ++taken;
    }
    EXPECT_GT(taken, 0) << key.path();
  }
}

TEST(Config, NumbersRoundTripExactly) {
  using Limits = std::numeric_limits<double>;
  for (const double value : {0.1 + 0.2, 1.0 / 3.0, 1e-10, 0.0078125, 536870912.0, 1e22, Limits::max(),
                             double{std::numeric_limits<float>::min()}, 1 + Limits::epsilon()}) {
    Config config;
    config.head.scale_g = value;
    EXPECT_EQ(parse_deck(to_toml(config), "d.toml", {}).head.scale_g, value);
  }
  Config config;
  config.run.seed = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(parse_deck(to_toml(config), "d.toml", {}).run.seed, config.run.seed);
}

/// Quotients of them would be infinite, with either sign.
TEST(Config, WhatFp32HoldsAsZeroIsZero) {
  for (const char* zero : {"0", "-0.0", "1e-320", "-1e-40"}) {
    const std::string number(zero);
    const double cooldown = parse_deck("", "d.toml", {"train.cooldown=" + number}).train.cooldown;
    EXPECT_EQ(cooldown, 0) << number;
    EXPECT_FALSE(std::signbit(cooldown)) << number;
    for (const char* divisor : {"model.softcap", "model.softcap_width", "model.norm_eps", "model.mudd_scale",
                                "head.scale_x", "head.scale_w", "head.scale_g", "optimizer.adam_eps"}) {
      EXPECT_NE(override_error(divisor + ("=" + number)), "") << divisor;
    }
  }
  EXPECT_EQ(parse_deck("", "d.toml", {"model.norm_eps=1.2e-38"}).model.norm_eps, 1.2e-38);
  EXPECT_EQ(parse_deck("", "d.toml", {"model.rotary_frequencies=[-0.0, 1]"}).model.rotary_frequencies[0], 0);
}

TEST(Config, StringsRoundTripExactly) {
  Config config;
  config.data.train = {"a \"quoted\" \\ name", "größe.h5", "# no comment"};
  EXPECT_EQ(parse_deck(to_toml(config), "d.toml", {}).data.train, config.data.train);
}

TEST(Config, OverridesGoBeforeTheDeck) {
  const Config config = parse_deck("[train]\nsteps = 5\n[run]\nname = \"deck\"\n", "d.toml",
                                   {"train.steps=7", "run.name=word", "checkpoint.restart=outputs/a-1/step_2.h5",
                                    "data.train=[\"a.h5\", \"b.h5\"]", "window.kind=token", "trace.enabled=false",
                                    "optimizer.adam_eps=1e-8", "run.outputs=\"two words\"", "train.steps=8"});
  EXPECT_EQ(config.train.steps, 8);
  EXPECT_EQ(config.run.name, "word");
  EXPECT_EQ(config.checkpoint.restart, "outputs/a-1/step_2.h5");
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"a.h5", "b.h5"}));
  EXPECT_EQ(config.window.kind, WindowKind::token);
  EXPECT_FALSE(config.trace.enabled);
  EXPECT_EQ(config.optimizer.adam_eps, 1e-8);
  EXPECT_EQ(config.run.outputs, "two words");
}

TEST(Config, ABareValueIsAListOfOne) {
  const Config config = parse_deck("[data]\ntrain = \"a.h5\"\n[model]\nlayers_without_attention = 7\n", "d.toml",
                                   {"data.validation=b_*.h5", "trace.json_steps=3"});
  EXPECT_EQ(config.data.train, Strings{"a.h5"});
  EXPECT_EQ(config.data.validation, Strings{"b_*.h5"});
  EXPECT_EQ(config.model.layers_without_attention, std::vector<int>{7});
  EXPECT_EQ(config.trace.json_steps, std::vector<int>{3});
  EXPECT_EQ(deck_error("[trace]\njson_steps = \"3\"\n"),
            "d.toml:2: trace.json_steps: got '3', allowed: list of 32-bit integers, each >= 0");
  EXPECT_TRUE(
      deck_error("[data]\ntrain = \"\"\n").starts_with("d.toml:2: data.train: got '', allowed: list of strings"));
  EXPECT_TRUE(deck_error("[data]\ntrain = 3\n").ends_with("; put the string in quotes: train = \"...\""));
}

TEST(Config, PlacesAreKeptOfTheKeysThatWereSet) {
  const Config config = parse_deck("[train]\nsteps = 5\nlength = 128\n", "d.toml", {"train.steps=7", "run.name=word"});
  const std::map<std::string, std::string> places = {
      {"train.steps", "override train.steps=7"}, {"train.length", "d.toml:3"}, {"run.name", "override run.name=word"}};
  EXPECT_EQ(config.set_at, places);
}

// The sizes whose products are taken, each at its upper bound.
TEST(Config, BoundsKeepProductsInRange) {
  const auto most = [](const std::string& path) {
    std::int64_t least = 128, beyond = std::int64_t{1} << 31;  // in steps of 128, which every unit divides
    while (beyond - least > 128) {
      const std::int64_t value = (least + beyond) / 256 * 128;
      try {
        parse_deck(rows, "d.toml", {fmt::format("{}={}", path, value)});
        least = value;
      } catch (const Error&) {
        beyond = value;
      }
    }
    return static_cast<double>(beyond);
  };
  EXPECT_LT(most("model.width") * 64, 0x1p31);
  EXPECT_LT(most("model.width") * most("model.vocabulary"), 0x1p31);
  EXPECT_LT(most("window.quantum") + most("window.quantum"), 0x1p31);
  EXPECT_LT(most("train.steps") * most("train.sequences") * most("train.length"), 0x1p63);
  EXPECT_LT(most("train.steps") * most("train.sequences") * most("stage.0.length"), 0x1p63);
  EXPECT_LT(most("model.width") * most("model.coefficient_width"), 0x1p31);
  EXPECT_LT(most("model.width") * most("model.bigram_sign_rows"), 0x1p31);
  EXPECT_LT(2 * most("stage.0.long_window"), 0x1p31);
  EXPECT_LT(2 * most("stage.0.short_window"), 0x1p31);
  EXPECT_LT(2 * most("validation.last_long_window"), 0x1p31);
  EXPECT_EQ(deck_error("[model]\nmlp_ratio = 65\n"),
            "d.toml:2: model.mlp_ratio: got 65, allowed: 32-bit integer, from 1 to 64");
}

TEST(DeckChanges, NameTheKeysThatDiffer) {
  const Config before = parse_deck("[train]\nsteps = 100\n", "d.toml", {});
  const Config after = parse_deck("", "d.toml", {"train.steps=200", "window.kind=token", "optimizer.adam_eps=1e-8"});
  EXPECT_EQ(lines_of_changes(before, after),
            (Strings{"changed since the checkpoint: window.kind: \"block\" -> \"token\"; train.steps: 100 -> 200; "
                     "optimizer.adam_eps: 1e-10 -> 1e-08"}));
  EXPECT_TRUE(deck_changes(to_toml(after), after).empty());
}

TEST(DeckChanges, TellTheRolesOfTheirKeys) {
  const Config after =
      parse_deck("", "d.toml", {"stop.step=5", "run.seed=3", "comm.gradients=bf16", "comm.transport=nccl"});
  const std::vector<KeyChange> changes = deck_changes(to_toml(Config{}), after);
  ASSERT_EQ(changes.size(), 4u);
  const auto expect = [&](int i, Role role, const char* key, const char* text) {
    EXPECT_EQ(changes[i].role, role) << key;
    EXPECT_EQ(changes[i].key, key);
    EXPECT_EQ(changes[i].text, text);
  };
  expect(0, Role::identifies, "run.seed", "run.seed: 1 -> 3");
  expect(1, Role::operates, "stop.step", "stop.step: 0 -> 5");
  expect(2, Role::trains, "comm.gradients", "comm.gradients: \"fp32\" -> \"bf16\"");
  expect(3, Role::operates, "comm.transport", "comm.transport: \"auto\" -> \"nccl\"");
}

TEST(DeckChanges, WarnOfAnotherTraining) {
  const Config before = parse_deck("", "d.toml", {"data.train=[\"a.h5\"]"});
  const Config after = parse_deck(
      "", "d.toml",
      {"run.seed=3", "train.sequences=16", "train.length=128", "data.train=[\"b.h5\"]", "validation.every=3"});
  EXPECT_EQ(lines_of_changes(before, after),
            (Strings{"changed since the checkpoint: validation.every: 125 -> 3",
                     "warning: changed since the checkpoint, so that this is no longer the same training: run.seed: 1 "
                     "-> 3; train.sequences: 8 -> 16; train.length: 49152 -> 128; data.train: [\"a.h5\"] -> "
                     "[\"b.h5\"]"}));
}

TEST(DeckChanges, LeaveKeysThatOperateOutOfTheLog) {
  const Config other =
      parse_deck("", "d.toml",
                 {"run.name=b", "run.outputs=c", "run.log_every=1", "train.recompute=mlp", "data.prefetch_steps=1",
                  "stop.step=5", "stop.walltime_seconds=9", "checkpoint.restart=none", "checkpoint.every=7",
                  "trace.enabled=false", "comm.timeout_seconds=5", "comm.transport=nccl"});
  EXPECT_EQ(deck_changes(to_toml(Config{}), other).size(), 12u);
  EXPECT_EQ(lines_of_changes(Config{}, other), Strings{});
}

// Decks are stored with every key, of which another version of the program may know others.
TEST(DeckChanges, RefuseADeckThatCannotBeRead) {
  for (const char* deck : {"[train]\nstages = 3\n", "[train]\nsteps = \"many\"\n", "[train\n"}) {
    EXPECT_TRUE(usage_error_of([&] { deck_changes(deck, Config{}); }).starts_with("the earlier deck:")) << deck;
  }
  EXPECT_EQ(change_lines(deck_changes("[train]\nsteps = 5\n", Config{})),
            (Strings{"changed since the checkpoint: train.steps: 5 -> 1770"}));
}

TEST(Config, PadsTheVocabulary) {
  ModelConfig model;
  for (const auto& [vocabulary, columns] : std::map<int, int>{{50257, 50304}, {257, 384}, {128, 128}, {65536, 65536}}) {
    model.vocabulary = vocabulary;
    EXPECT_EQ(padded_vocabulary(model), columns);
  }
}
