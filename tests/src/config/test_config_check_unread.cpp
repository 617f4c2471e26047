// Rules on keys that nothing reads where another key is off.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "src/config/config.hpp"
#include "tests/support/deck_errors.hpp"

namespace nanorun {
namespace {

const std::string data = "[data]\ntrain = [\"t.h5\"]\nvalidation = [\"v.h5\"]\n";

/// The message on the one rule that the overrides break; empty where they break none.
std::string rule(const std::vector<std::string>& overrides, const std::string& deck = data) {
  return error_of([&] { check_config(parse_deck(deck, "d.toml", overrides), 1); }, ExitCode::usage, Scope::all_ranks);
}

const Strings with_adam = {"optimizer.matrix_rule=adam"};
const std::string muon_names = "optimizer.matrix_rule = \"muon\" or a [[group]] with rule = \"muon\"";

/// A key that nothing reads beside some overrides, and that something reads with further ones.
struct Case {
  std::string key, value, unset;  ///< `unset` is its default
  Strings without, with;
  std::string needs;  ///< what the message names
};
const std::vector<Case> cases = {
    {"model.init_std_outputs", "0.01", "0.0", {"model.zero_outputs=false"}, {"model.init_std=0.02"}, "model.init_std"},
    {"model.init_std_outputs",
     "0.01",
     "0.0",
     {"model.init_std=0.02"},
     {"model.zero_outputs=false"},
     "model.zero_outputs = false"},
    {"model.init_std_outputs",
     "0.01",
     "0.0",
     {"model.init_std=0.02"},
     {"model.zero_attention_outputs=false"},
     "model.zero_outputs = false"},
    {"model.init_embedding2",
     "0.5",
     "1.0",
     {"model.residual=before", "model.value_path=none"},
     {"model.second_embedding=true"},
     "model.second_embedding"},
    {"model.init_residual",
     "1.1",
     "1.05",
     {"model.value_path=none"},
     {"model.residual=before"},
     "model.residual = \"before\""},
    {"model.gate_columns",
     "16",
     "12",
     {"model.residual=before", "model.value_path=none"},
     {"model.smear=true"},
     "model.smear, model.skip_gate, model.value_layers or model.gated_layers"},
    {"optimizer.orthogonalisation_maps",
     "[2.0, -1.5, 0.5]",
     "[]",
     with_adam,
     {"optimizer.matrix_rule=muon"},
     muon_names},
    {"optimizer.orthogonalisation_steps", "4", "0", with_adam, {"optimizer.matrix_rule=muon"}, muon_names},
    {"optimizer.muon_moments", "\"bf16\"", "\"fp32\"", with_adam, {"optimizer.matrix_rule=muon"}, muon_names},
    {"optimizer.outer_lr", "0.68", "0.7", {}, {"optimizer.outer_every=28"}, "optimizer.outer_every"},
    {"optimizer.outer_momentum", "0.37", "0.5", {}, {"optimizer.outer_every=28"}, "optimizer.outer_every"},
};

Strings joined(Strings a, const Strings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(CheckUnread, KeysThatNothingReadsAreRefused) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.key);
    const std::string given = c.key + "=" + c.value;
    EXPECT_EQ(rule(joined(c.without, {given})),
              fmt::format("override {}: {} = {} needs {}", given, c.key, c.value, c.needs));
    EXPECT_EQ(rule(joined(joined(c.without, {given}), c.with)), "");
  }
}

/// As decks have them that runs write back.
TEST(CheckUnread, KeysWithTheirDefaultsAreNot) {
  for (const Case& c : cases) {
    const Strings overrides = joined(c.without, {c.key + "=" + c.unset});
    EXPECT_EQ(rule(overrides), "") << c.key;
    EXPECT_EQ(rule({}, to_toml(parse_deck(data, "d.toml", overrides))), "") << c.key;
  }
}

/// Whoever uses the model of a checkpoint cannot change its deck.
TEST(CheckUnread, ModelsOfSuchDecksCanBeUsed) {
  for (const Case& c : cases) {
    const Config config = parse_deck(data, "d.toml", joined(c.without, {c.key + "=" + c.value}));
    EXPECT_NO_THROW(check_model(config)) << c.key;
  }
}

TEST(CheckUnread, AnyGateReadsItsColumns) {
  const Strings mixing = {"model.residual=before", "model.value_path=none", "model.gate_columns=16"};
  for (const Strings& gates :
       std::vector<Strings>{{"model.smear=true"},
                            {"model.gated_layers=2"},
                            {"model.skip_from=1", "model.skip_to=3", "model.skip_gate=true"},
                            {"model.value_path=gated_embeddings", "model.value_layers=[0, 4]"}}) {
    EXPECT_EQ(rule(joined(mixing, gates)), "") << gates[0];
  }
  const Strings nets = {"model.residual=scaled", "model.value_path=none", "model.gate_columns=16",
                        "model.gated_layers=2"};
  EXPECT_EQ(rule(nets), "");
  EXPECT_NE(rule(joined(nets, {"model.gate_nets=true"})).find("model.gate_columns = 16 needs"), std::string::npos);
}

TEST(CheckUnread, AGroupByMuonReadsItsKeys) {
  const std::string deck =
      data + "[optimizer]\nmatrix_rule = \"adam\"\n[[group]]\ntensors = [\"*_gate\"]\nlr = 0.01\nrule = \"muon\"\n";
  EXPECT_EQ(rule({"optimizer.orthogonalisation_steps=4"}, deck), "");
  EXPECT_EQ(rule({"optimizer.muon_moments=bf16"}, deck), "");
}

/// They choose among mechanisms, whose own keys a deck may keep.
TEST(CheckUnread, WhatAnOverrideSwitchesOffIsTaken) {
  for (const Strings& overrides : std::vector<Strings>{{"model.softcap_shift=5", "model.softcap_width=7.5"},
                                                       {"model.softcap_kind=none", "model.softcap=30"},
                                                       {"data.row_length=2048"},
                                                       {"optimizer.lr_matrix=0.001"},
                                                       {"optimizer.matrix_rule=adam", "optimizer.muon_decay=0.1"},
                                                       {"train.cooldown_shape=cosine", "train.cooldown=0"}}) {
    EXPECT_EQ(rule(overrides), "") << overrides[0];
  }
  const std::string average = "[[average]]\ntensors = [\"*\"]\nfrom_last = 4\nrate = 0.5\n";
  EXPECT_EQ(rule({"average.0.blend=0"}, data + average), "");
}

}  // namespace
}  // namespace nanorun
