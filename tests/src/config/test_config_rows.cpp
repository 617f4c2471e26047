// Sections that a deck may have any number of: [[stage]] and [[group]].

#include "src/config/config.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "src/config/config_keys.hpp"
#include "tests/support/deck_errors.hpp"

using namespace nanorun;

namespace {

const std::string two_stages =
    "[[stage]]\nshare = 0.5\nlength = 128\ntargets = [1, 0.5]\n\n[train]\nsteps = 7\n\n[[stage]]\nshare = 0.5\n"
    "lr_factor = 2\n";

std::string rows_error(const std::string& override_text, const std::string& deck = two_stages) {
  return usage_error_of([&] { parse_deck(deck, "d.toml", {override_text}); });
}

Strings texts_of(const std::vector<KeyChange>& changes) {
  Strings texts;
  for (const KeyChange& change : changes) texts.push_back(change.text);
  return texts;
}

}  // namespace

TEST(ConfigRows, AreReadInTheirOrder) {
  const Config config = parse_deck(
      two_stages + "[[group]]\ntensors = [\"block.*.mlp_out\", \"head\"]\nlr = 0.5\n[[group]]\ntensors = \"skip.*\"\n",
      "d.toml", {});
  ASSERT_EQ(config.stage.size(), 2u);
  EXPECT_EQ(config.stage[0].length, 128);
  EXPECT_EQ(config.stage[0].lr_factor, 1);
  EXPECT_EQ(config.stage[0].targets, (std::vector<double>{1, 0.5}));
  EXPECT_EQ(config.stage[1].length, StageConfig{}.length);
  EXPECT_EQ(config.stage[1].lr_factor, 2);
  EXPECT_EQ(config.stage[1].targets, std::vector<double>{1});
  EXPECT_EQ(config.train.steps, 7);
  ASSERT_EQ(config.group.size(), 2u);
  EXPECT_EQ(config.group[0].tensors, (Strings{"block.*.mlp_out", "head"}));
  EXPECT_EQ(config.group[0].lr, 0.5);
  EXPECT_EQ(config.group[1].tensors, Strings{"skip.*"});
  const std::map<std::string, std::string> places = {
      {"stage.0", "d.toml:1"},         {"stage.0.share", "d.toml:2"},     {"stage.0.length", "d.toml:3"},
      {"stage.0.targets", "d.toml:4"}, {"train.steps", "d.toml:7"},       {"stage.1", "d.toml:9"},
      {"stage.1.share", "d.toml:10"},  {"stage.1.lr_factor", "d.toml:11"}};
  EXPECT_EQ(parse_deck(two_stages, "d.toml", {}).set_at, places);
}

TEST(ConfigRows, InlineTablesAreRowsToo) {
  const Config config = parse_deck("stage = [{share = 0.25, length = 256}, {}]\n", "d.toml", {});
  ASSERT_EQ(config.stage.size(), 2u);
  EXPECT_EQ(config.stage[0].length, 256);
  EXPECT_EQ(config.stage[1].share, 0);
}

TEST(ConfigRows, AreResolved) {
  EXPECT_EQ(to_toml(Config{}).find("[["), std::string::npos);
  const Config config = parse_deck(two_stages + "[[group]]\ntensors = [\"head\"]\nlr = 1e-3\n", "d.toml", {});
  const std::string text = to_toml(config);
  const Config again = parse_deck(text, "resolved.toml", {});
  EXPECT_EQ(to_toml(again), text);
  ASSERT_EQ(again.stage.size(), 2u);
  EXPECT_EQ(again.stage[0].targets, config.stage[0].targets);
  EXPECT_EQ(again.group[0].lr, 1e-3);
  EXPECT_NE(text.find("\n[[stage]]\nshare = 0.5  # "), std::string::npos);
  EXPECT_NE(text.find("\ntargets = [1.0, 0.5]  # "), std::string::npos);
}

TEST(ConfigRows, AreOverridden) {
  const Config config = parse_deck(two_stages + "[[group]]\n", "d.toml",
                                   {"stage.0.length=1024", "stage.1.targets=[1, 0.25]", "stage.1.targets_end=0.5",
                                    "group.0.tensors=block.*.qkv", "group.0.lr=0.25"});
  EXPECT_EQ(config.stage[0].length, 1024);
  EXPECT_EQ(config.stage[1].targets, (std::vector<double>{1, 0.25}));
  EXPECT_EQ(config.stage[1].targets_end, std::vector<double>{0.5});
  EXPECT_EQ(config.group[0].tensors, Strings{"block.*.qkv"});
  EXPECT_EQ(config.group[0].lr, 0.25);
  EXPECT_EQ(config.set_at.at("stage.0.length"), "override stage.0.length=1024");
}

TEST(ConfigRows, OverridesNameARowThatIsThere) {
  for (const char* row : {"2", "18446744073709551616", "99999999999999999999999"}) {
    const std::string text = fmt::format("stage.{}.length=128", row);
    EXPECT_EQ(rows_error(text), fmt::format("override {}: the deck has 2 [[stage]]: stage.0 to stage.1", text));
  }
  EXPECT_EQ(rows_error("stage.1.length=128", "[[stage]]\n"),
            "override stage.1.length=128: the deck has 1 [[stage]]: stage.0");
  EXPECT_EQ(rows_error("group.0.lr=1"), "override group.0.lr=1: the deck has no [[group]]");
  for (const char* text : {"stage.length=128", "stage.x.length=1", "stage.0=1", "stage.-1.length=128",
                           "stage..length=1", "stage.+0.length=1", "stage.0x.length=128"}) {
    EXPECT_EQ(rows_error(text),
              fmt::format("override {}: keys of [[stage]] have the form stage.N.key, N counted from 0", text));
  }
}

TEST(ConfigRows, ErrorsNamePlaceAndRow) {
  EXPECT_EQ(deck_error(two_stages + "lenght = 3\n"),
            "d.toml:12: unknown key stage.1.lenght; nearest known key: stage.1.length");
  EXPECT_EQ(rows_error("stage.0.window=3"),
            "override stage.0.window=3: unknown key stage.0.window; nearest known key: stage.0.long_window");
  EXPECT_EQ(deck_error("[train]\nprefix = 1\n"),
            "d.toml:2: unknown key train.prefix; nearest known key: stage.N.prefix");
  EXPECT_EQ(deck_error("[[stage]]\n[[stage]]\nlength = 100\n"),
            "d.toml:3: stage.1.length: got 100, allowed: 32-bit integer, a multiple of 128 from 128 to 4194304");
  EXPECT_EQ(rows_error("stage.1.targets=[1, -1]"),
            "override stage.1.targets=[1, -1]: stage.1.targets: got [ 1, -1 ], allowed: list of numbers, each >= 0");
  EXPECT_EQ(rows_error("stage.0.prefix_end=-0.5"),
            "override stage.0.prefix_end=-0.5: stage.0.prefix_end: got -0.5, allowed: number, -1 or >= 0");
  EXPECT_EQ(rows_error("stage.0.targets="),
            "override stage.0.targets=: stage.0.targets: got nothing, allowed: list of numbers, each >= 0; in a shell: "
            "'stage.0.targets=[]'");
  EXPECT_EQ(rows_error("stage.0.targets=1,0.5"),
            "override stage.0.targets=1,0.5: the value is neither a TOML value nor a bare word; in a shell: "
            "'stage.0.targets=[1, 0.5]'");
  EXPECT_EQ(
      deck_error("[[group]]\ntensors = [\"block 1\"]\n"),
      "d.toml:2: group.0.tensors: got [ 'block 1' ], allowed: list of strings, each not empty, of letters, digits, "
      "'.', '_' and *");
  EXPECT_EQ(deck_error("[[group]]\ntensors = [\"head\"]\nmaster = \"fp16\"\n"),
            "d.toml:3: group.0.master: got 'fp16', allowed: one of \"auto\" \"fp32\" \"bf16\"");
  EXPECT_EQ(deck_error("[optimizer]\nadam_moments = 16\n"),
            "d.toml:2: optimizer.adam_moments: got 16, allowed: one of \"fp32\" \"bf16\"");
}

TEST(ConfigRows, HeadersOfOtherKindsAreExplained) {
  EXPECT_EQ(deck_error("\n[stage]\nlength = 128\n"), "d.toml:2: stage is a list of sections: write [[stage]]");
  EXPECT_EQ(deck_error("group = 3\n"), "d.toml:1: group is a list of sections: write [[group]]");
  EXPECT_EQ(deck_error("group = [{}, 3]\n"), "d.toml:1: group is a list of sections: write [[group]]");
  EXPECT_EQ(deck_error("stage = []\n"), "d.toml:1: stage is a list of sections: write [[stage]]");
  EXPECT_EQ(deck_error("[[model]]\n"), "d.toml:1: model is a section: write [model]");
  EXPECT_EQ(deck_error("[[stages]]\n"), "d.toml:1: unknown section [[stages]]; nearest known section: [[stage]]");
  EXPECT_EQ(deck_error("[stages]\n"), "d.toml:1: unknown section [stages]; nearest known section: [[stage]]");
  std::string many;
  for (std::size_t i = 0; i < max_rows; ++i) many += "[[stage]]\n";
  EXPECT_EQ(parse_deck(many, "d.toml", {}).stage.size(), max_rows);
  EXPECT_EQ(deck_error("\n" + many + "[[stage]]\n"), "d.toml:2: 65 sections [[stage]]; a deck has at most 64");
}

TEST(ConfigRows, ChangesNameTheirKeys) {
  const Config before = parse_deck(two_stages, "d.toml", {});
  const Config after = parse_deck(two_stages, "d.toml", {"stage.1.lr_factor=3", "stage.0.length=256"});
  const std::vector<KeyChange> changes = deck_changes(to_toml(before), after);
  EXPECT_EQ(texts_of(changes), (Strings{"stage.0.length: 128 -> 256", "stage.1.lr_factor: 2.0 -> 3.0"}));
  EXPECT_EQ(changes[0].role, Role::identifies);
  EXPECT_EQ(changes[0].key, "stage.0.length");
  EXPECT_EQ(changes[1].role, Role::trains);
  EXPECT_TRUE(deck_changes(to_toml(after), after).empty());
}

TEST(ConfigRows, ChangesNameRowsThatCameAndWent) {
  const Config two = parse_deck(two_stages, "d.toml", {});
  const Config three =
      parse_deck(two_stages + "[[stage]]\nlength = 256\n[[group]]\ntensors = [\"head\"]\nlr = 1\n", "d.toml", {});
  const std::vector<KeyChange> more = deck_changes(to_toml(two), three);
  EXPECT_EQ(texts_of(more),
            (Strings{"stage.2: none -> {length = 256}", "group.0: none -> {tensors = [\"head\"], lr = 1.0}"}));
  EXPECT_EQ(more[0].role, Role::identifies);
  EXPECT_EQ(more[0].key, "stage.2");
  EXPECT_EQ(more[1].role, Role::trains);
  EXPECT_EQ(texts_of(deck_changes(to_toml(three), two)),
            (Strings{"stage.2: {length = 256} -> none", "group.0: {tensors = [\"head\"], lr = 1.0} -> none"}));
}

// Decks in checkpoints of older versions lack the newer keys, whose defaults are what these versions did.
TEST(ConfigRows, OlderDecksCountAsUnchanged) {
  std::string older;
  for (const std::string& line : lines_of(to_toml(Config{}))) {
    const std::string name = line.substr(0, line.find(' '));
    if (name != "softcap_kind" && name != "residual" && name != "adam_period" && name != "packing")
      older += line + "\n";
  }
  EXPECT_LT(lines_of(older).size(), lines_of(to_toml(Config{})).size());
  EXPECT_TRUE(deck_changes(older, Config{}).empty());
}

TEST(ConfigRows, TheReferenceHasTheirKeys) {
  const std::string text = key_reference();
  EXPECT_NE(text.find("\n## [[stage]]\n"), std::string::npos);
  EXPECT_NE(text.find("\n| `targets` | `[1.0]` | list of numbers, each >= 0 | trains | "), std::string::npos);
  EXPECT_NE(text.find("\n## [[group]]\n"), std::string::npos);
}
