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

const Strings with_adam = {"optimizer.matrix_rule=adam"}, with_muon = {"optimizer.matrix_rule=muon"};
const Strings plain = {"model.residual=plain", "model.value_path=none"};
const Strings scaled = {"model.residual=scaled", "model.value_path=gated_embeddings", "model.value_layers=11"};
const Strings mudd = {"model.mudd=true", "model.attention_source=7", "model.skip_from=3", "model.skip_to=6",
                      "model.layers_without_attention=6"};
const std::string muon_names = "optimizer.matrix_rule = \"muon\" or a [[group]] with rule = \"muon\"";

Strings joined(Strings a, const Strings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

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
    {"model.init_scale",
     "3.0",
     "1.0",
     {"model.init_std=0.02"},
     {"model.zero_outputs=false"},
     "model.init_std = 0, or model.zero_outputs = false without model.tied_head"},
    {"model.init_scale",
     "3.0",
     "1.0",
     {"model.init_std=0.02", "model.zero_outputs=false", "model.tied_head=true"},
     {"model.init_std=0"},
     "model.init_std = 0, or model.zero_outputs = false without model.tied_head"},
    {"model.init_scale_mlp",
     "3.0",
     "0.0",
     {"model.init_std=0.02", "model.zero_outputs=false"},
     {"model.init_std=0"},
     "model.init_std = 0"},
    {"model.zero_attention_outputs",
     "false",
     "true",
     {"model.zero_outputs=false"},
     {"model.zero_outputs=true"},
     "model.zero_outputs"},
    {"model.init_value_embedding",
     "2.0",
     "1.0",
     {"model.value_path=first"},
     {"model.value_path=embeddings"},
     "model.value_path = \"embeddings\" or \"gated_embeddings\""},
    {"model.init_value_embedding",
     "2.0",
     "1.0",
     {"model.residual=before", "model.value_path=none"},
     {"model.value_path=gated_embeddings", "model.value_layers=0"},
     "model.value_path = \"embeddings\" or \"gated_embeddings\""},
    {"model.value_embeddings",
     "7",
     "3",
     {"model.value_path=first"},
     {"model.value_path=embeddings", "model.layers=14"},
     "model.value_path = \"embeddings\""},
    {"model.rotary_base",
     "10000.0",
     "1024.0",
     {"model.head_dim=8", "model.width=48", "model.rotary_frequencies=[0.5, 0.25]"},
     {"model.rotary_frequencies=[]"},
     "model.rotary_frequencies = []"},
    {"model.attention_scale",
     "0.1",
     "0.0",
     {"model.residual=before", "model.value_path=none", "model.qk_dims=64", "model.attention_scale_narrow=0.2"},
     {"model.attention_scale_narrow=0"},
     "a layer whose model.qk_dims is model.head_dim, or model.attention_scale_narrow = 0"},
    {"model.attention_scale",
     "0.1",
     "0.0",
     {"model.residual=before", "model.value_path=none", "model.qk_dims=64", "model.attention_scale_narrow=0.2"},
     {"model.qk_dims=[64,64,64,64,64,64,64,64,64,64,64,128]"},
     "a layer whose model.qk_dims is model.head_dim, or model.attention_scale_narrow = 0"},
    {"model.composition_window",
     "64",
     "112",
     joined(scaled, {"model.gate_nets=true"}),
     {"model.composed_layers=2"},
     "model.composed_layers"},
    {"model.gate_net_layer", "2", "4", joined(scaled, mudd), {"model.gate_nets=true"}, "model.gate_nets"},
    {"model.coefficient_width", "32", "64", scaled, mudd, "model.gate_nets or model.mudd"},
    {"model.coefficient_width", "32", "64", scaled, {"model.gate_nets=true"}, "model.gate_nets or model.mudd"},
    {"model.mudd_scale", "0.3", "0.1", joined(scaled, {"model.gate_nets=true"}), mudd, "model.mudd"},
    {"model.mudd_value_scale", "2.0", "1.0", joined(scaled, {"model.gate_nets=true"}), mudd, "model.mudd"},
    {"model.mudd_backout", "0.25", "0.5", joined(scaled, {"model.gate_nets=true"}), mudd, "model.mudd"},
    {"model.gate_columns",
     "16",
     "12",
     joined(scaled, mudd),
     {"model.value_layers=[2, 11]"},
     "model.smear, model.skip_gate, model.value_layers or model.gated_layers"},
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
    {"optimizer.orthogonalisation", "\"six_maps\"", "\"newton_schulz\"", with_adam, with_muon, muon_names},
    {"optimizer.orthogonalisation_maps", "[2.0, -1.5, 0.5]", "[]", with_adam, with_muon, muon_names},
    {"optimizer.orthogonalisation_steps", "4", "0", with_adam, with_muon, muon_names},
    {"optimizer.normuon_beta", "0.9", "0.0", with_adam, with_muon, muon_names},
    {"optimizer.muon_block_heads", "2", "0", with_adam, with_muon, "optimizer.matrix_rule = \"muon\""},
    {"optimizer.muon_truncates", "true", "false", with_adam, with_muon, "optimizer.matrix_rule = \"muon\""},
    {"optimizer.muon_moments", "\"bf16\"", "\"fp32\"", with_adam, with_muon, muon_names},
    {"optimizer.fast_momentum", "0.5", "0.85", {}, {"optimizer.slow_momentum=0.98"}, "optimizer.slow_momentum"},
    {"optimizer.lr_skip", "0.5", "0.04", plain, {"model.residual=unet"}, "model.residual = \"unet\""},
    {"optimizer.outer_lr", "0.68", "0.7", {}, {"optimizer.outer_every=28"}, "optimizer.outer_every"},
    {"optimizer.outer_momentum", "0.37", "0.5", {}, {"optimizer.outer_every=28"}, "optimizer.outer_every"},
    {"fp8.qkv.margin",
     "1.5",
     "1.25",
     {"fp8.qkv.forward=e4m3"},
     {"fp8.qkv.scales=delayed"},
     "fp8.qkv.scales = \"delayed\""},
    {"profile.first", "3", "0", {}, {"profile.last=3"}, "profile.last"},
    {"comm.gradient_scale",
     "1024.0",
     "65536.0",
     {"comm.gradients=bf16"},
     {"comm.gradients=e5m2"},
     "comm.gradients = \"e5m2\""},
};

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

TEST(CheckUnread, AGroupByMuonKeepsSecondMomentsAndCutsNoHeads) {
  const std::string deck =
      data + "[optimizer]\nmatrix_rule = \"adam\"\n[[group]]\ntensors = [\"*_gate\"]\nlr = 0.01\nrule = \"muon\"\n";
  EXPECT_EQ(rule({"optimizer.normuon_beta=0.9", "optimizer.orthogonalisation=six_maps"}, deck), "");
  for (const std::string key : {"optimizer.muon_block_heads=2", "optimizer.muon_truncates=true"})
    EXPECT_NE(rule({key}, deck).find(" needs optimizer.matrix_rule = \"muon\""), std::string::npos) << key;
}

const std::string two_stages = "[train]\nextension_steps = 2\n[[stage]]\nshare = 1\n[[stage]]\nshare = 0\n" + data;

TEST(CheckUnread, PrefixesNeedAWeight) {
  const std::string message =
      "override data.prefix_table=x: data.prefix_table = \"x\" needs a [[stage]] with prefix or prefix_end";
  EXPECT_EQ(rule({"data.prefix_table=x"}), message);
  EXPECT_EQ(rule({"data.prefix_table=x"}, two_stages), message);
  EXPECT_EQ(rule({"data.prefix_table=x", "stage.0.prefix=0", "stage.0.prefix_end=0"}, two_stages), message);
  EXPECT_EQ(rule({"data.prefix_table=x", "stage.1.prefix=0.25"}, two_stages), "");
  EXPECT_EQ(rule({"data.prefix_table=x", "stage.0.prefix_end=0.25"}, two_stages), "");
}

/// Without a cooldown the extension has the rates of its stage.
TEST(CheckUnread, TheExtensionHasTheFinalRates) {
  EXPECT_EQ(rule({"stage.1.lr_factor=2"}, two_stages),
            "override stage.1.lr_factor=2: stage.1.lr_factor = 2 needs stage.1.share");
  for (const Strings& overrides : std::vector<Strings>{
           {"stage.1.lr_factor=1"},
           {"stage.0.lr_factor=2"},
           {"stage.1.lr_factor=2", "train.cooldown=0"},
           {"stage.1.lr_factor=2", "train.extension_steps=0", "stage.0.share=0.5", "stage.1.share=0.5"}}) {
    EXPECT_EQ(rule(overrides, two_stages), "") << overrides[0];
  }
}

TEST(CheckUnread, ADeckKeepsTheKeysOfWhatAnOverrideSwitchesOff) {
  const std::string deck =
      data + "[optimizer]\nmatrix_rule = \"muon\"\nnormuon_beta = 0.9\nouter_every = 28\nouter_lr = 0.68\n";
  EXPECT_EQ(rule({"optimizer.outer_every=0"}, deck), "");
  EXPECT_EQ(rule({"optimizer.matrix_rule=adam"}, deck), "");
  EXPECT_EQ(
      rule({"optimizer.matrix_rule=adam", "optimizer.normuon_beta=0.5"}, deck),
      "override optimizer.normuon_beta=0.5: optimizer.normuon_beta = 0.5 needs optimizer.matrix_rule = \"muon\" or a "
      "[[group]] with rule = \"muon\"");
  const std::string prefixes = "prefix_table = \"x\"\n[[stage]]\nshare = 1\nprefix = 0.25\n";
  EXPECT_EQ(rule({"stage.0.prefix=0"}, data + prefixes), "");
  EXPECT_EQ(rule({"stage.0.prefix=0", "data.prefix_table=y"}, data + prefixes),
            "override data.prefix_table=y: data.prefix_table = \"y\" needs a [[stage]] with prefix or prefix_end");
  EXPECT_EQ(rule({"optimizer.outer_every=0", "optimizer.outer_lr=0.6"}, deck),
            "override optimizer.outer_lr=0.6: optimizer.outer_lr = 0.6 needs optimizer.outer_every");
  EXPECT_EQ(rule({"optimizer.normuon_beta=0.5"}, data + "[optimizer]\nouter_lr = 0.68\n"),
            "d.toml:5: optimizer.outer_lr = 0.68 needs optimizer.outer_every");
}

/// They choose among mechanisms, whose own keys a deck may keep.
TEST(CheckUnread, WhatAnOverrideSwitchesOffIsTaken) {
  for (const Strings& overrides :
       std::vector<Strings>{{"model.softcap_shift=5", "model.softcap_width=7.5"},
                            {"model.softcap_kind=none", "model.softcap=30"},
                            {"data.row_length=2048"},
                            {"optimizer.lr_matrix=0.001"},
                            {"optimizer.matrix_rule=adam", "optimizer.muon_decay=0.1"},
                            {"train.cooldown_shape=cosine", "train.cooldown=0"},
                            {"train.final_lr_factor=0", "train.cooldown=0"},
                            {"fp8.mlp.scales=delayed", "fp8.mlp.margin=1.5"},
                            {"fp8.qkv.weight_scales=delayed", "fp8.qkv.margin=1.5"},
                            {"head.precision=bf16", "head.scale_x=4", "head.scale_g=1024"},
                            {"validation.tokens=0", "validation.every=7"},
                            {"trace.enabled=false", "trace.flush_every=7"},
                            {"optimizer.decay_kind=plain"},
                            {"optimizer.lr_scalar=0.1", "model.residual=plain", "model.value_path=none"}}) {
    EXPECT_EQ(rule(overrides), "") << overrides[0];
  }
  const std::string average = "[[average]]\ntensors = [\"*\"]\nfrom_last = 4\nrate = 0.5\n";
  EXPECT_EQ(rule({"average.0.blend=0"}, data + average), "");
}

}  // namespace
}  // namespace nanorun
