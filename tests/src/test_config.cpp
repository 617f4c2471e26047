#include "src/config.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <sstream>

#include "src/config_keys.hpp"
#include "tests/error_of.hpp"

using namespace nanorun;

namespace {

template <class Action>
std::string usage_error_of(Action&& action) {
  return error_on_all_ranks(ExitCode::usage, action);
}

std::string deck_error(const std::string& text) {
  return usage_error_of([&] { parse_deck(text, "d.toml", {}); });
}

std::string override_error(const std::string& text) {
  return usage_error_of([&] { parse_deck("", "d.toml", {text}); });
}

std::string check_error(const std::vector<std::string>& overrides, int ranks = 1) {
  std::vector<std::string> all = {"data.train=[\"t.h5\"]", "data.validation=[\"v.h5\"]"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return usage_error_of([&] { check_config(parse_deck("", "d.toml", all), ranks); });
}

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

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

using Strings = std::vector<std::string>;

Strings lines_of_changes(const Config& before, const Config& after) {
  return change_lines(deck_changes(to_toml(before), after));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Lines of a resolved deck that differ from those of the default.
std::vector<std::string> changed_lines(const Config& config) {
  const std::vector<std::string> before = lines_of(to_toml(Config{})), after = lines_of(to_toml(config));
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
  EXPECT_EQ(config.head.precision, HeadChoice::automatic);
  EXPECT_EQ(config.head.scale_g, 0.5);
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"a*.h5", "b.h5"}));
}

TEST(Config, EveryMemberHasARow) {
  EXPECT_EQ(rows_of("run"), member_count<RunConfig>());
  EXPECT_EQ(rows_of("model"), member_count<ModelConfig>());
  EXPECT_EQ(rows_of("head"), member_count<HeadConfig>());
  EXPECT_EQ(rows_of("window"), member_count<WindowConfig>());
  EXPECT_EQ(rows_of("train"), member_count<TrainConfig>());
  EXPECT_EQ(rows_of("validation"), member_count<ValidationConfig>());
  EXPECT_EQ(rows_of("data"), member_count<DataConfig>());
  EXPECT_EQ(rows_of("optimizer"), member_count<OptimizerConfig>());
  EXPECT_EQ(rows_of("checkpoint"), member_count<CheckpointConfig>());
  EXPECT_EQ(rows_of("stop"), member_count<StopConfig>());
  EXPECT_EQ(rows_of("trace"), member_count<TraceConfig>());
  EXPECT_EQ(rows_of("comm"), member_count<CommConfig>());
}

// Every key takes at least one of these values, differing from its default, and changes nothing but its own line.
TEST(Config, EveryKeyIsSetAndReadBack) {
  const std::vector<std::string> values = {"true",         "false",     "256",        "2",        "0.25",
                                           "\"SL\"",       "[5]",       "[\"a.h5\"]", "\"none\"", "\"full\"",
                                           "\"token\"",    "\"floor\"", "\"bf16\"",   "\"wrap\"", "\"mlp\"",
                                           "\"continue\"", "\"nccl\"",  "\"accept\""};
  for (const Key& key : key_table()) {
    int taken = 0;
    for (const std::string& value : values) {
      Config config;
      try {
        config = parse_deck("", "d.toml", {key.path() + "=" + value});
      } catch (const Error&) {
        continue;
      }
      const std::vector<std::string> changed = changed_lines(config);
      EXPECT_EQ(changed_lines(parse_deck(to_toml(config), "d.toml", {})), changed) << key.path();
      if (changed.empty()) continue;  // the default
      ASSERT_EQ(changed.size(), 1u) << key.path();
      EXPECT_TRUE(changed[0].starts_with(fmt::format("{} = {}", key.name, value)) ||
                  changed[0].starts_with(fmt::format("{} = [{}]", key.name, value)))
          << changed[0];
      ++taken;
    }
    EXPECT_GT(taken, 0) << key.path();
  }
}

TEST(Config, NumbersRoundTripExactly) {
  using Limits = std::numeric_limits<double>;
  for (const double value : {0.1 + 0.2, 1.0 / 3.0, 1e-10, 0.0078125, 536870912.0, 1e22, Limits::max(), Limits::min(),
                             Limits::denorm_min(), 1 + Limits::epsilon()}) {
    Config config;
    config.head.scale_g = value;
    EXPECT_EQ(parse_deck(to_toml(config), "d.toml", {}).head.scale_g, value);
  }
  Config config;
  config.run.seed = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(parse_deck(to_toml(config), "d.toml", {}).run.seed, config.run.seed);
}

TEST(Config, StringsRoundTripExactly) {
  Config config;
  config.data.train = {"a \"quoted\" \\ name", "größe.h5", "# no comment"};
  EXPECT_EQ(parse_deck(to_toml(config), "d.toml", {}).data.train, config.data.train);
}

TEST(Config, UnknownKeyNamesTheNearest) {
  EXPECT_EQ(deck_error("[model]\nwidth = 768\nlayer = 3\n"),
            "d.toml:3: unknown key model.layer; nearest known key: model.layers");
  EXPECT_EQ(deck_error("[model]\nsteps = 3\n"), "d.toml:2: unknown key model.steps; nearest known key: train.steps");
  EXPECT_EQ(deck_error("[train]\nlenght = 3\n"), "d.toml:2: unknown key train.lenght; nearest known key: train.length");
  EXPECT_EQ(deck_error("[train]\nstep = 3\n"), "d.toml:2: unknown key train.step; nearest known key: train.steps");
  EXPECT_EQ(deck_error("[optimizer]\nlr = 1\n"),
            "d.toml:2: unknown key optimizer.lr; nearest known key: optimizer.muon_lr");
  EXPECT_EQ(deck_error("[optimizer]\nadam_beta = 1\n"),
            "d.toml:2: unknown key optimizer.adam_beta; nearest known key: optimizer.adam_beta1");
  EXPECT_EQ(deck_error("[train]\nlr = 1\n"),
            "d.toml:2: unknown key train.lr; nearest known key: train.final_lr_factor");
  EXPECT_EQ(deck_error("[window]\nlr = 1\n"), "d.toml:2: unknown key window.lr; nearest known key: optimizer.muon_lr");
  EXPECT_EQ(deck_error("[checkpoint]\nsoftcap = 1\n"),
            "d.toml:2: unknown key checkpoint.softcap; nearest known key: model.softcap");
  EXPECT_EQ(deck_error("\nsteps = 3\n"),
            "d.toml:2: unknown key steps outside any section; nearest known key: train.steps");
  EXPECT_EQ(deck_error("[model]\n[model.head]\nx = 1\n"),
            "d.toml:2: unknown key model.head; nearest known key: model.heads");
}

TEST(Config, UnknownSectionNamesTheNearest) {
  EXPECT_EQ(deck_error("[run]\n[modle]\nwidth = 768\n"),
            "d.toml:2: unknown section [modle]; nearest known section: [model]");
  EXPECT_EQ(deck_error("\n\nmodel = 3\n"), "d.toml:3: model is a section: write [model]");
}

TEST(Config, WrongTypeNamesWhatIsAllowed) {
  EXPECT_EQ(deck_error("[model]\n\nheads = \"six\"\n"),
            "d.toml:3: model.heads: got 'six', allowed: 32-bit integer, from 1 to 1024");
  EXPECT_EQ(deck_error("[model]\nheads = 6.0\n"),
            "d.toml:2: model.heads: got 6.0, allowed: 32-bit integer, from 1 to 1024");
  EXPECT_EQ(deck_error("[model]\nsoftcap = true\n"),
            "d.toml:2: model.softcap: got true, allowed: number, > 0 and <= 75");
  EXPECT_EQ(deck_error("[model]\nzero_outputs = 1\n"), "d.toml:2: model.zero_outputs: got 1, allowed: true or false");
  EXPECT_EQ(
      deck_error("[run]\noutputs = 1\n"),
      "d.toml:2: run.outputs: got 1, allowed: string, not empty, without control characters, not beginning with ~ "
      "or $; put the string in quotes: outputs = \"...\" in a deck, 'run.outputs=\"...\"' on the command line");
  EXPECT_EQ(deck_error("[trace]\njson_steps = [1, \"2\"]\n"),
            "d.toml:2: trace.json_steps: got [ 1, '2' ], allowed: list of 32-bit integers, each >= 0");
  EXPECT_EQ(deck_error("[window]\nkind = 3\n"), "d.toml:2: window.kind: got 3, allowed: one of \"token\" \"block\"");
}

TEST(Config, ImpossibleValueNamesWhatIsAllowed) {
  EXPECT_EQ(deck_error("[head]\nprecision = \"fp16\"\n"),
            "d.toml:2: head.precision: got 'fp16', allowed: one of \"auto\" \"fp32\" \"bf16\" \"fp8\"");
  EXPECT_EQ(deck_error("[train]\nlength = 1000\n"),
            "d.toml:2: train.length: got 1000, allowed: 32-bit integer, a multiple of 128 from 128 to 4194304");
  EXPECT_EQ(deck_error("[train]\ncooldown = 1.5\n"), "d.toml:2: train.cooldown: got 1.5, allowed: number, from 0 to 1");
  EXPECT_EQ(deck_error("[train]\nsteps = 4294967297\n"),
            "d.toml:2: train.steps: got 4294967297, allowed: 32-bit integer, from 1 to 10000000");
  EXPECT_EQ(deck_error("[optimizer]\nadam_beta1 = 1\n"),
            "d.toml:2: optimizer.adam_beta1: got 1, allowed: number, >= 0 and < 1");
  EXPECT_EQ(deck_error("[optimizer]\nmuon_lr = nan\n"), "d.toml:2: optimizer.muon_lr: got nan, allowed: number, >= 0");
  EXPECT_EQ(deck_error("[optimizer]\nmuon_lr = inf\n"), "d.toml:2: optimizer.muon_lr: got inf, allowed: number, >= 0");
  EXPECT_EQ(deck_error("[window]\nlayers = \"LSX\"\n"),
            "d.toml:2: window.layers: got 'LSX', allowed: string, of letters L and S");
  EXPECT_EQ(deck_error("[trace]\njson_steps = [3, -1]\n"),
            "d.toml:2: trace.json_steps: got [ 3, -1 ], allowed: list of 32-bit integers, each >= 0");
  EXPECT_EQ(deck_error("[model]\nlayers = 7\n"),
            "d.toml:2: model.layers: got 7, allowed: 32-bit integer, a multiple of 2 from 2 to 1024");
  EXPECT_EQ(deck_error("[model]\nhead_dim = 6\n"),
            "d.toml:2: model.head_dim: got 6, allowed: 32-bit integer, a multiple of 4 from 4 to 4096");
  EXPECT_EQ(deck_error("[run]\nname = \"a/b\"\n").substr(0, 49), "d.toml:2: run.name: got 'a/b', allowed: string, n");
}

TEST(Config, SyntaxErrorNamesItsLine) {
  EXPECT_TRUE(deck_error("[model]\nwidth = \n").starts_with("d.toml:2: syntax error: "));
  EXPECT_TRUE(deck_error("[model\n").starts_with("d.toml:1: syntax error: "));
  EXPECT_TRUE(deck_error("[model]\nwidth = 1\nwidth = 2\n").starts_with("d.toml:3: syntax error: "));
  EXPECT_TRUE(deck_error("[model]\nwidth = 1 2\n").starts_with("d.toml:2: syntax error: "));
  EXPECT_TRUE(deck_error("[run]\nseed = 9223372036854775808\n").starts_with("d.toml:2: syntax error: "));
}

TEST(Config, NestingIsBounded) {
  const std::string arrays = repeat("[", 50000) + repeat("]", 50000),
                    tables = repeat("{a=", 50000) + "1" + repeat("}", 50000), keys = "a" + repeat(".a", 50000),
                    quoted = "'a'" + repeat(" . \"a\"", 50000), mixed = repeat("{a.a.a=[", 50000);
  const std::string message = "brackets or dotted keys nest more than 16 deep";
  for (const std::string& text :
       {"x = " + arrays, "x = " + tables, keys + " = 1", quoted + " = 1", "[" + keys + "]", "[[" + quoted + "]]",
        "x = " + mixed, "x = {" + keys + " = 1}", "x = [{}, {" + keys + "=1}]"}) {
    EXPECT_EQ(deck_error("# [[[\n\n[run]\n" + text + "\n"), "d.toml:4: " + message) << text.substr(0, 20);
  }
  for (const std::string& value : {arrays, tables, mixed, "1\n[" + keys + "]", "{" + keys + " = 1}"}) {
    const std::string error = override_error("train.steps=" + value);
    EXPECT_TRUE(error.ends_with("...: " + message)) << error;
    EXPECT_LT(error.size(), 300u);
  }
  EXPECT_TRUE(deck_error("[trace]\njson_steps = " + repeat("[", 17) + repeat("]", 17)).ends_with(message));
  EXPECT_EQ(
      deck_error("[trace]\njson_steps = " + repeat("[", 16) + repeat("]", 16)),
      "d.toml:2: trace.json_steps: got [ [ [ [ [ [ [ [ [ [ [ [ [ [ [ [] ] ] ] ] ] ] ] ] ] ] ] ] ..., allowed: list of "
      "32-bit integers, each >= 0");
}

TEST(Config, BracketsAndDotsOfStringsAndCommentsDoNotNest) {
  const std::string b = repeat("[", 20) + repeat("{", 20) + repeat(".", 20);
  const std::string deck = "# " + b + "\n[data]\ntrain = [ # '''" + b + "\n\"\\\"" + b + "\", '" + b +
                           "\\',\n\"\"\"\n" + b + "\\\"\"\"\"\"\", '''\n" + b + "''''' ] # \" " + b + "\n";
  EXPECT_EQ(parse_deck(deck, "d.toml", {}).data.train,
            (std::vector<std::string>{"\"" + b, b + "\\", b + "\"\"\"", b + "''"}));
}

TEST(Config, ValuesBesideEachOtherDoNotNest) {
  std::string deck = "[optimizer]\n";
  for (const char* key : {"muon_lr", "adam_beta1", "adam_beta2", "adam_eps", "lr_head", "lr_skip", "lr_scalar"}) {
    deck += fmt::format("{} = 0.5\n", key);
  }
  deck += "[trace]\njson_steps = [" + repeat("1, ", 100) + "]\n" + repeat("[trace.x]\n", 2);
  EXPECT_TRUE(deck_error(deck).starts_with("d.toml:12: syntax error: "));  // the same section again
}

TEST(Config, SizeIsBounded) {
  EXPECT_EQ(deck_error(repeat("\n", 1048577)), "d.toml: 1048577 bytes; a deck has at most 1048576");
  EXPECT_NO_THROW(parse_deck(repeat("\n", 1048576), "d.toml", {}));
}

TEST(Config, LongTextIsCutInMessages) {
  const std::string a = repeat("a", 1000000), cut = repeat("a", 57) + "...";
  EXPECT_TRUE(deck_error(a + " = 1").starts_with("d.toml:1: unknown key " + cut + " outside any section; nearest"));
  EXPECT_TRUE(deck_error("[" + a + "]").starts_with("d.toml:1: unknown section [" + cut + "]; nearest"));
  EXPECT_TRUE(deck_error("[run]\n" + a + " = 1").starts_with("d.toml:2: unknown key run." + cut + "; nearest"));
  EXPECT_TRUE(deck_error("[run]\nname = \"" + a + "/\"").starts_with("d.toml:2: run.name: got '" + cut.substr(1)));
  EXPECT_TRUE(deck_error("x = " + repeat("1", 1000000)).starts_with("d.toml:1: syntax error: "));
  for (const std::string& text : {"train.steps=" + a, a + "=1", a + "." + a + "=1", "train." + a + "=1"}) {
    EXPECT_LT(override_error(text).size(), 400u);
  }
}

TEST(Excerpt, IsOneLineOfWholeCharacters) {
  EXPECT_EQ(excerpt("a\tb\n\x7f\x1b[0m"), "a b   [0m");
  EXPECT_EQ(excerpt("größe", 7), "größe");
  EXPECT_EQ(excerpt("größer", 6), "gr...");
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

TEST(Config, OverrideErrorsNameTheOverride) {
  EXPECT_EQ(override_error("train.step=3"),
            "override train.step=3: unknown key train.step; nearest known key: train.steps");
  EXPECT_EQ(override_error("modle.widht=3"),
            "override modle.widht=3: unknown key modle.widht; nearest known key: model.width");
  EXPECT_EQ(override_error("train.steps=many"),
            "override train.steps=many: train.steps: got 'many', allowed: 32-bit integer, from 1 to 10000000");
  EXPECT_EQ(
      override_error("run.outputs=42"),
      "override run.outputs=42: run.outputs: got 42, allowed: string, not empty, without control characters, not "
      "beginning with ~ or $; put the string in quotes: outputs = \"...\" in a deck, 'run.outputs=\"...\"' on the "
      "command line");
  EXPECT_TRUE(override_error("run.name=2026-11-21").ends_with("'run.name=\"...\"' on the command line"));
  EXPECT_EQ(parse_deck("", "d.toml", {"run.name=\"42\""}).run.name, "42");
  EXPECT_EQ(override_error("train.steps=0"),
            "override train.steps=0: train.steps: got 0, allowed: 32-bit integer, from 1 to 10000000");
  for (const char* text : {"train.steps", "steps=3", "=", "name=a.b"}) {
    EXPECT_EQ(override_error(text), fmt::format("override {}: an override has the form section.key=value", text));
  }
  for (const char* text : {"train.steps=", "train.steps=3 4", "window.kind=\"open"}) {
    EXPECT_EQ(override_error(text),
              fmt::format("override {}: the value is neither a TOML value nor a bare word", text));
  }
  EXPECT_EQ(override_error("train.steps=3\nx=1"),
            "override train.steps=3 x=1: the value is neither a TOML value nor a bare word");
}

TEST(Config, PathsAreNotForShellsToExpand) {
  const std::string allowed = "without control characters, not beginning with ~ or $";
  for (const char* key : {"run.outputs", "stop.file", "checkpoint.restart", "data.train", "data.validation"}) {
    for (const char* value : {"~/x", "~", "~user/x", "$HOME/x", "${HOME}/x"}) {
      const std::string error = override_error(fmt::format("{}=\"{}\"", key, value));
      EXPECT_NE(error.find(fmt::format("{}: got '{}', allowed: ", key, value)), std::string::npos) << error;
      EXPECT_NE(error.find(allowed), std::string::npos) << error;
      EXPECT_TRUE(
          error.ends_with("; nothing has expanded it: write the full path, or in a shell $HOME or another "
                          "variable outside single quotes"))
          << error;
    }
    for (const char* value : {"a\\tb", "\\n", "a\\u0000", "\\u001b[2J", "\\u007f"}) {
      const std::string error = override_error(fmt::format("{}=\"{}\"", key, value));
      EXPECT_TRUE(error.ends_with(allowed)) << error;
    }
    EXPECT_NO_THROW(parse_deck("", "d.toml", {fmt::format("{}=\"./~/$x/ä b\"", key)}));
  }
  EXPECT_NE(deck_error("[data]\ntrain = [\"a.h5\", \"b\\nc\"]\n").find(allowed), std::string::npos);
  EXPECT_NE(deck_error("[data]\ntrain = [\"b.h5\", \"~/a.h5\"]\n").find("; nothing has expanded it"),
            std::string::npos);
  EXPECT_EQ(parse_deck("", "d.toml", {"stop.file=\"\""}).stop.file, "");
}

TEST(Config, NamesOfRunsHaveNoControlCharacters) {
  for (const char* name : {"a\\tb", "a\\n", "\\u001b", "a\\u0000b", "\\u007f"}) {
    EXPECT_NE(override_error(fmt::format("run.name=\"{}\"", name)).find("without '/' and control characters"),
              std::string::npos);
  }
  EXPECT_EQ(parse_deck("", "d.toml", {"run.name=\"größe 2\""}).run.name, "größe 2");
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
  EXPECT_TRUE(deck_error("[data]\ntrain = 3\n").ends_with("'data.train=\"...\"' on the command line"));
}

TEST(Config, RefusedOverridesShowTheQuotesOfAShell) {
  const auto ends = [](const std::string& text, const std::string& quoted) {
    EXPECT_EQ(
        override_error(text),
        fmt::format("override {}: the value is neither a TOML value nor a bare word; in a shell: {}", text, quoted));
  };
  ends("data.train=[a.h5]", "'data.train=[\"a.h5\"]'");
  ends("data.train=[a.h5, b c.h5]", "'data.train=[\"a.h5\", \"b c.h5\"]'");
  ends("data.train=a.h5,b.h5", "'data.train=[\"a.h5\", \"b.h5\"]'");
  ends("data.train=[a.h5,", "'data.train=[\"a.h5\", ...]'");
  ends("trace.json_steps=3,5", "'trace.json_steps=[3, 5]'");
  ends("run.name=two words", "'run.name=\"two words\"'");
  ends("run.name=\"open", "'run.name=\"open\"'");
  ends("run.name=it's", "'run.name=\"it'\\''s\"'");
  EXPECT_EQ(override_error("window.kind=a b"),
            "override window.kind=a b: the value is neither a TOML value nor a bare word");
  for (const char* good : {"data.train=[\"a.h5\", \"b c.h5\"]", "trace.json_steps=[3, 5]", "run.name=\"it's\""}) {
    EXPECT_NO_THROW(parse_deck("", "d.toml", {good}));
  }
}

TEST(Config, AnotherSpellingOfAWordIsNoFileToRestartFrom) {
  for (const char* word : {"AUTO", "Auto", "NONE", "nonE"}) {
    EXPECT_TRUE(override_error(fmt::format("checkpoint.restart={}", word))
                    .starts_with(fmt::format("override checkpoint.restart={0}: checkpoint.restart: got '{0}', allowed: "
                                             "string, \"auto\", \"none\" or a file",
                                             word)));
  }
  for (const char* value : {"auto", "none", "Automatic", "./AUTO"}) {
    EXPECT_EQ(parse_deck("", "d.toml", {fmt::format("checkpoint.restart={}", value)}).checkpoint.restart, value);
  }
}

TEST(Config, AllErrorsAreReportedInTheOrderOfTheFile) {
  const std::string deck =
      "[train]\nsteps = 0\nlenght = 3\n[run]\nname = \"\"\nseed = 4\n[modle]\nx = 1\n[comm]\nx = 1\n";
  const auto message = [&](const std::vector<std::string>& overrides) {
    try {
      parse_deck(deck, "d.toml", overrides);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_EQ(error.scope(), Scope::all_ranks);
      return lines_of(error.what());
    }
    return Strings{};
  };
  const Strings lines = message({"train.step=3", "run.name=x", "b.h5]"});
  const Strings starts = {"d.toml:2: train.steps: got 0, allowed: ",
                          "d.toml:3: unknown key train.lenght; nearest known key: train.length",
                          "d.toml:5: run.name: got '', allowed: ",
                          "d.toml:7: unknown section [modle]; nearest known section: [model]",
                          "d.toml:10: unknown key comm.x; ",
                          "override train.step=3: unknown key train.step; ",
                          "override b.h5]: an override has the form section.key=value"};
  ASSERT_EQ(lines.size(), starts.size());
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_TRUE(lines[i].starts_with(starts[i])) << lines[i];

  const Strings many = message(Strings(100000, "train.step=3"));
  ASSERT_EQ(many.size(), ErrorList::max_shown + 1);
  EXPECT_EQ(many.back(), "further errors, if any, are not shown");
}

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
            "override window.layers=LS: window.layers has 2 letters; one, or one for each of the 12 layers");
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
  EXPECT_EQ(check_error({"train.sequences=12"}, 8),
            "override train.sequences=12: train.sequences = 12 cannot be shared by 8 ranks; rank counts that divide "
            "it: 1, 2, 3, 4, 6, 12");
  EXPECT_EQ(check_error({}, 16),
            "train.sequences = 8 cannot be shared by 16 ranks; rank counts that divide it: 1, 2, 4, 8");
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

TEST(Config, PlacesAreKeptOfTheKeysThatWereSet) {
  const Config config = parse_deck("[train]\nsteps = 5\nlength = 128\n", "d.toml", {"train.steps=7", "run.name=word"});
  const std::map<std::string, std::string> places = {
      {"train.steps", "override train.steps=7"}, {"train.length", "d.toml:3"}, {"run.name", "override run.name=word"}};
  EXPECT_EQ(config.places, places);
}

// The sizes whose products are taken, each at its upper bound.
TEST(Config, BoundsKeepProductsInRange) {
  const auto most = [](const std::string& path) {
    std::int64_t least = 128, beyond = std::int64_t{1} << 31;  // in steps of 128, which every unit divides
    while (beyond - least > 128) {
      const std::int64_t value = (least + beyond) / 256 * 128;
      try {
        parse_deck("", "d.toml", {fmt::format("{}={}", path, value)});
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
  EXPECT_EQ(deck_error("[model]\nmlp_ratio = 65\n"),
            "d.toml:2: model.mlp_ratio: got 65, allowed: 32-bit integer, from 1 to 64");
}

TEST(Config, AbsurdValuesAreRefused) {
  for (const char* text : {"run.log_every=2147483647",
                           "model.vocabulary=65537",
                           "model.width=16388",
                           "model.heads=1025",
                           "model.head_dim=4100",
                           "model.layers=1026",
                           "model.value_embeddings=513",
                           "model.layers_without_attention=[1024]",
                           "window.first=4194305",
                           "window.last=1e300",
                           "window.quantum=4194432",
                           "train.steps=2147483647",
                           "train.sequences=65537",
                           "train.length=4194432",
                           "validation.tokens=9223372036854775807",
                           "validation.length=4194432",
                           "data.prefetch_steps=1025",
                           "optimizer.muon_momentum_steps=2147483647",
                           "checkpoint.keep=2147483647",
                           "trace.flush_every=100001",
                           "stop.walltime_seconds=1e300",
                           "comm.timeout_seconds=1e300",
                           "head.scale_g_length=4194432",
                           "model.softcap=75.001",
                           "model.softcap=0"}) {
    EXPECT_NE(override_error(text).find(", allowed: "), std::string::npos) << text;
  }
  EXPECT_EQ(parse_deck("", "d.toml", {"model.softcap=75", "train.length=4194304"}).model.softcap, 75.0);
}

TEST(CheckConfig, RefusesTracesOfStepsThatNeverRun) {
  EXPECT_EQ(check_error({"train.steps=20", "trace.json_steps=[19, 20]"}),
            "override trace.json_steps=[19, 20]: trace.json_steps names step 20; the steps are 0 to 19");
}

TEST(CheckConfig, IgnoresKeysThatAreNotUsed) {
  for (const std::vector<std::string>& overrides : {std::vector<std::string>{"window.kind=token", "window.quantum=64"},
                                                    {"model.value_path=none", "model.value_embeddings=7"},
                                                    {"trace.enabled=false", "trace.json_steps=[10000000]"},
                                                    {"validation.tokens=0", "data.validation=[]"}}) {
    std::vector<std::string> all = {"data.train=[\"t.h5\"]", "data.validation=[\"v.h5\"]"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    EXPECT_NO_THROW(check_config(parse_deck("", "d.toml", all), 1));
  }
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
