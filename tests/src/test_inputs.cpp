// The decks of inputs/ and the reference of their keys.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "src/config/config.hpp"
#include "src/config/schedule.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "src/run/plan_text.hpp"
#include "src/run/training_plan.hpp"
#include "tests/support/deck_errors.hpp"
#include "tests/support/every_second_step.hpp"

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
      if (config.model.residual == Residual::scaled && !computes_in_fp32) {
        EXPECT_NE(usage_error_of([&] { check_config(config, ranks); }).find("runs in the CPU build only"), name.npos);
        continue;
      }
      EXPECT_NO_THROW(check_config(config, ranks)) << name << " on " << ranks << " ranks";
    }
  }
  EXPECT_EQ(decks, 12);
}

TEST(Inputs, PlainGptsPassOnEveryUsualRankCount) {
  int decks = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_folder / "inputs" / "gpt2")) {
    ++decks;
    const std::string name = entry.path().stem().string();
    const Config config = read_deck("gpt2/" + name);
    EXPECT_EQ(config.run.name, "gpt2_" + name);
    EXPECT_EQ(config.model.residual, Residual::plain);
    for (const int ranks : {1, 2, 4, 8})
      EXPECT_NO_THROW(check_config(config, ranks)) << name << " on " << ranks << " ranks";
    const Config again = parse_deck(to_toml(config), "resolved.toml", {});
    EXPECT_TRUE(deck_changes(to_toml(config), again).empty()) << name;
    // The warm-up of all steps is followed by a cosine to the end.
    const TrainConfig& train = config.train;
    EXPECT_EQ(lr_factor(config, train.warmup - 1), 1) << name;
    EXPECT_NEAR(lr_factor(config, train.warmup), 1, 1e-12) << name;
    EXPECT_LT(lr_factor(config, train.warmup + train.steps / 100), 1) << name;
    EXPECT_NEAR(lr_factor(config, train.warmup + (train.steps - train.warmup) / 2), (1 + train.final_lr_factor) / 2,
                1e-4)
        << name;
    // Every matrix and table decays, gains and biases do not, and all have one rate.
    const ParameterTable table(config.model);
    EXPECT_TRUE(group_warnings(config, table).empty()) << name;
    for (const Parameter& p : table.parameters()) {
      const Hyperparameters hyper = hyperparameters(config, p);
      EXPECT_EQ(hyper.rule, Rule::adam) << p.name;
      EXPECT_EQ(hyper.lr, config.group[0].lr) << p.name;
      EXPECT_EQ(hyper.beta2, config.group[0].beta2) << p.name;
      EXPECT_EQ(hyper.decay, p.name.ends_with("_bias") || p.name.ends_with("_gain") ? 0 : 0.1) << p.name;
    }
    EXPECT_EQ(config.optimizer.clip_norm, 1);
    EXPECT_FALSE(config.model.qk_norm);
    EXPECT_EQ(attention_scale(config.model, rotary_stage(config, 0), 0), 1 / std::sqrt(config.model.head_dim));
  }
  EXPECT_EQ(decks, 5);
}

TEST(Inputs, Gpt2Of124MillionIsThatOfLlmC) {
  const Config config = read_deck("gpt2/124m");
  EXPECT_EQ(step_tokens(config, 0), 524288);
  EXPECT_EQ(config.train.steps, 18865);
  EXPECT_NEAR(lr_factor(config, 0), 1.0 / 700, 1e-15);
  // wte, and 12 blocks with biases and gains; llm.c has positions and biases of layer norms besides.
  const ParameterTable table(config.model);
  const std::size_t d = 768;
  EXPECT_EQ(table.size() - table.find("embedding").size(), 50304 * d + 12 * (12 * d * d + 9 * d + 2 * d) + d);
  EXPECT_NEAR(table.find("block.0.mlp_out").bound, 0.02 / std::sqrt(24), 1e-8);
}

TEST(Inputs, DecksForSmallGpusAreRecord21InBf16) {
  const Config record = read_deck("record21");
  for (const auto& [name, recompute] :
       {std::pair{"record21_16gb", Recompute::mlp}, {"record21_24gb", Recompute::none}}) {
    Config config = read_deck(name);
    EXPECT_EQ(config.head.precision, LmHeadChoice::bf16) << name;
    EXPECT_EQ(config.train.recompute, recompute) << name;
    config.run.name = record.run.name;
    config.head = record.head;
    config.train.recompute = record.train.recompute;
    EXPECT_EQ(to_toml(config), to_toml(record)) << name;
  }
}

TEST(Inputs, DecksResolveToThemselves) {
  for (const char* name : {"quickstart", "record13", "record18", "record20", "record21", "record21_16gb",
                           "record21_24gb", "record81", "record89", "recipe349"}) {
    const Config config = read_deck(name);
    const Config again = parse_deck(to_toml(config), "resolved.toml", {});
    EXPECT_EQ(to_toml(again), to_toml(config)) << name;
    EXPECT_TRUE(deck_changes(to_toml(config), again).empty()) << name;
    if (computes_in_fp32) {
      EXPECT_NO_THROW(check_config(again, 1)) << name;
    }
  }
}

TEST(Inputs, Record13HasThePublishedSchedule) {
  const Config config = read_deck("record13");
  EXPECT_EQ(config.train.steps, 1750);
  EXPECT_EQ(lr_factor(config, 1110), 1.0);
  EXPECT_LT(lr_factor(config, 1111), 1.0);
  EXPECT_NEAR(lr_factor(config, 1430), 0.5, 1e-12);
  EXPECT_NEAR(lr_factor(config, 1750), 0.0, 1e-12);
  for (long s = 0; s <= 1750; ++s) {
    const int published = 64 * ((1728 * s + 64 * 1750) / (64 * 1750));
    ASSERT_EQ(windows_at(config, s).long_tokens, published) << "step " << s;
  }
}

TEST(Inputs, Record18HasThePublishedSchedule) {
  const Config config = read_deck("record18");
  EXPECT_EQ(config.train.steps, 1390);
  EXPECT_NEAR(lr_factor(config, 1112), 0.5, 1e-12);
  EXPECT_NEAR(lr_factor(config, 1390), 0.0, 1e-12);
  for (long s = 0; s <= 1390; ++s) {
    const int published = 128 * ((128 * (1390 - s) + 1856 * s) / (128 * 1390));
    ASSERT_EQ(windows_at(config, s).long_tokens, published) << "step " << s;
  }
}

TEST(Inputs, Records20And21HaveThePublishedSchedule) {
  for (const auto& [name, steps] : {std::pair{"record20", 1393L}, {"record21", 1770L}}) {
    const Config config = read_deck(name);
    EXPECT_EQ(config.train.steps, steps);
    EXPECT_NEAR(lr_factor(config, steps), 0.1, 1e-12);
    for (long s = 0; s <= steps; ++s) {
      const long published = 128 * std::max(1L, (1728 * s + 128 * steps - 1) / (128 * steps));
      ASSERT_EQ(windows_at(config, s).long_tokens, published) << name << ", step " << s;
    }
    std::vector<int> long_layers;
    for (int layer = 0; layer < config.model.layers; ++layer) {
      if (is_long_layer(config.window, layer)) long_layers.push_back(layer);
    }
    EXPECT_EQ(long_layers, (std::vector<int>{0, 4, 7, 11}));
  }
}

TEST(Inputs, Record89HasThePublishedSchedule) {
  const Config config = read_deck("record89");
  EXPECT_EQ(config.train.steps, 1285);
  EXPECT_EQ(scheduled_steps(config.train), 1270);
  ASSERT_EQ(stage_count(config), 4);
  struct Stage {
    long end;
    int length, longest_document;
    Windows windows;
    double attention_scale;
  };
  const Stage published[] = {{423, 16384, 896, {128, 384}, 0.1},
                             {847, 32768, 2048, {384, 896}, 0.116946},
                             {1270, 49152, 2048, {640, 1408}, 0.127518},
                             {1285, 49152, 2048, {768, 1664}, 0.131778}};
  for (int i = 0; i < 4; ++i) {
    const auto [first, end] = stage_steps(config, i);
    EXPECT_EQ(end, published[i].end);
    for (const long step : {first, end - 1}) {
      EXPECT_EQ(stage_of(config, step), i);
      EXPECT_EQ(length_at(config, step), published[i].length);
      EXPECT_EQ(longest_document_at(config, step), published[i].longest_document);
      EXPECT_EQ(windows_at(config, step), published[i].windows);
      EXPECT_EQ(validation_windows(config, step), published[i].windows);
    }
    EXPECT_NEAR(rotary_stage(config, i).attention_scale, published[i].attention_scale, 5e-7);
  }
  EXPECT_EQ(validation_windows(config, 1285), (Windows{768, 2560}));
  EXPECT_EQ(step_tokens(config, 0), 131072);
  EXPECT_EQ(step_tokens(config, 423), 262144);
  EXPECT_EQ(step_tokens(config, 847), 393216);
  EXPECT_EQ(tokens_before(config, 1285), 338'821'120);  // 338.8 million
  for (int layer = 0; layer < 11; ++layer) {
    EXPECT_EQ(is_long_layer(config.window, layer), layer == 3 || layer == 10) << layer;
  }
  EXPECT_EQ((config.train.untie_step + 1) % config.optimizer.adam_period, 0);
  EXPECT_EQ(config.train.untie_step, 847);
}

TEST(Inputs, Record89HasThePublishedRates) {
  const Config config = read_deck("record89");
  for (const auto& [step, factor] : {std::pair(0L, 1.0),
                                     {422L, 1.0},
                                     {423L, 1.52},
                                     {507L, 1.52},
                                     {600L, 1.3546},
                                     {846L, 0.9123},
                                     {847L, 1.0271},
                                     {1000L, 0.7098},
                                     {1269L, 0.1521},
                                     {1270L, 0.15},
                                     {1284L, 0.15}}) {
    EXPECT_NEAR(lr_factor(config, step), factor, 5e-5) << step;
  }
  for (const auto& [step, momentum] :
       {std::pair(0L, 0.85), {150L, 0.9}, {300L, 0.95}, {1235L, 0.95}, {1260L, 0.9}, {1284L, 0.852}}) {
    EXPECT_NEAR(muon_momentum(config, step), momentum, 1e-12) << step;
  }
}

TEST(Inputs, Record89HasThePublishedLoss) {
  const Config config = read_deck("record89");
  struct Row {
    long step;
    int count;
    std::array<double, 3> weights;
    double prefix;
  };
  for (const Row& row : {Row{0, 3, {1, 0.5, 0.25}, 0.25},
                         {422, 3, {1, 0.5, 0.25 / 423}, 0.25},
                         {423, 2, {1, 0.5, 0}, 0.25},
                         {635, 2, {1, 0.25, 0}, 0.125},
                         {847, 1, {1, 0, 0}, 0},
                         {1284, 1, {1, 0, 0}, 0}}) {
    const Targets targets = targets_at(config, row.step);
    ASSERT_EQ(targets.count, row.count) << row.step;
    for (int k = 0; k < row.count; ++k) EXPECT_NEAR(targets.weights[k], row.weights[k], 1e-12) << row.step;
    EXPECT_NEAR(targets.prefix_weight, row.prefix, 1e-12) << row.step;
  }
  EXPECT_EQ(config.train.loss, LossSum::sum);
  EXPECT_EQ(config.model.softcap, 23);
}

TEST(Inputs, Record89HasThePublishedUpdates) {
  const Config config = read_deck("record89");
  const ParameterTable table(config.model);
  const double base = 0.008;
  const auto expect = [&](const std::string& name, double factor, double beta1, double beta2, double decay) {
    const Hyperparameters rule = hyperparameters(config, table.find(name));
    EXPECT_NEAR(rule.lr, base * factor, 1e-12) << name;
    EXPECT_EQ(rule.beta1, beta1) << name;
    EXPECT_EQ(rule.beta2, beta2) << name;
    EXPECT_NEAR(rule.decay, 0.005 * decay, 1e-12) << name;
  };
  for (const char* name : {"head", "embedding"}) expect(name, 1, 0.5, 0.95, 150);
  for (const char* name : {"value_embedding.0", "value_embedding.4", "bigram"}) expect(name, 75, 0.75, 0.95, 5);
  for (const Parameter& p : table.parameters()) {
    const bool table_of_rows = p.group == Group::lm_head || p.group == Group::embedding;
    const bool matrix_of_net = matches("*_net.*.in", p.name) || matches("*_net.*.out", p.name);
    const bool rounded = table_of_rows || matrix_of_net || matches("*_gate", p.name);
    EXPECT_EQ(hyperparameters(config, p).master == StateFormat::bf16, rounded) << p.name;
  }
  for (const char* name : {"block.0.attention_factors", "smear_factor", "skip_factor"}) expect(name, 5, 0.9, 0.99, 0);
  expect("smear_gate", 0.01, 0.9, 0.99, 0);
  expect("block.9.value_gate", 1, 0.9, 0.99, 1);
  for (const char* name : {"block.0.attention_post", "block.6.mlp_post"}) expect(name, 1, 0.9, 0.95, 0);
  for (const char* name : {"block.0.attention_residual", "block.6.mlp_residual"}) expect(name, 5, 0.9, 0.95, 0);
  for (const char* net : {"mudd_net.0", "mudd_net.1"}) {
    expect(std::string(net) + ".in", 0.25, 0.9, 0.99, 1);
    expect(std::string(net) + ".out", 0.25, 0.9, 0.99, 1);
    expect(std::string(net) + ".bias", 0.25, 0.9, 0.99, 0);
  }
  for (const char* net : {"gate_net.0", "gate_net.1"}) {
    expect(std::string(net) + ".in", 0.1, 0.9, 0.99, 1);
    expect(std::string(net) + ".out", 0.1, 0.9, 0.99, 1);
    expect(std::string(net) + ".bias", 0.1, 0.9, 0.99, 0);
  }
  expect("gate_net.scale", 0.1, 0.9, 0.99, 0);
}

TEST(Inputs, Record81HasThePublishedSchedule) {
  const Config config = read_deck("record81");
  EXPECT_EQ(config.train.steps, 1415);
  EXPECT_EQ(scheduled_steps(config.train), 1405);
  ASSERT_EQ(stage_count(config), 4);
  for (const auto& [stage, end] : {std::pair(0, 468L), {1, 937L}, {2, 1405L}, {3, 1415L}}) {
    EXPECT_EQ(stage_steps(config, stage).end, end) << stage;
    EXPECT_EQ(targets_at(config, end - 1).prefix_weight, 0) << stage;
  }
  EXPECT_EQ(config.train.untie_step, 937);
  EXPECT_EQ(938 % config.optimizer.adam_period, 0);
  for (const auto& [step, factor] : {std::pair(0L, 1.0), {468L, 1.52}, {561L, 1.52}, {1405L, 0.15}, {1414L, 0.15}}) {
    EXPECT_NEAR(lr_factor(config, step), factor, 5e-5) << step;
  }
  EXPECT_LT(lr_factor(config, 563), 1.52);
  EXPECT_EQ(tokens_before(config, 1415), 372'244'480);
}

// What the two decks have in common does not drift apart.
TEST(Inputs, Record81DiffersFromRecord89InFewKeys) {
  const std::set<std::string> known = {
      "run.name",
      "model.value_layers_gated_by_input",
      "model.bigram_rows",
      "model.bigram_sign_rows",
      "model.skip_gate",
      "model.xsa_layers",
      "model.gated_layers",
      "model.composed_layers",
      "model.gate_nets",
      "model.mudd_scale",
      "model.mudd_value_scale",
      "model.mudd_backout",
      "train.steps",
      "train.extension_steps",
      "train.mlp_precision",
      "train.untie_step",
      "stage.0.prefix",
      "stage.1.prefix",
      "stage.1.prefix_end",
      "data.prefix_table",
      "optimizer.adam_beta1",  // rate of tensors that no group names: record 81 has none
      "optimizer.lr_scalar",
  };
  std::set<std::string> different;
  for (const KeyChange& change : deck_changes(to_toml(read_deck("record89")), read_deck("record81"))) {
    if (!change.key.starts_with("group.")) different.insert(change.key);
  }
  EXPECT_EQ(different, known);
}

TEST(Inputs, Record81HasThePublishedUpdates) {
  const Config config = read_deck("record81"), later = read_deck("record89");
  const ParameterTable table(config.model);
  const auto rule = [&](const std::string& name) { return hyperparameters(config, table.find(name)); };
  for (const char* name : {"block.0.injection", "block.9.injection"}) {
    EXPECT_EQ(rule(name), in_every_second_step({Rule::adam, 0.008, 0.9, 0.95, 0})) << name;
  }
  for (const char* name : {"block.0.attention_gate", "block.10.attention_gate", "block.9.value_gate"}) {
    EXPECT_EQ(rule(name), in_every_second_step({Rule::adam, 0.008, 0.9, 0.99, 0.005})) << name;
  }
  EXPECT_EQ(rule("skip_gate"), in_every_second_step({Rule::adam, 0.0004, 0.9, 0.99, 0}));
  const ParameterTable later_table(later.model);
  int common = 0;
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.name == "skip_gate" || parameter.name.ends_with("injection") ||
        parameter.name.ends_with("attention_gate")) {
      continue;
    }
    ++common;
    Hyperparameters expected = hyperparameters(later, later_table.find(parameter.name));
    if (parameter.group == Group::matrix) expected.beta1 = rule(parameter.name).beta1;  // Muon does not read it
    expected.master = expected.moments = StateFormat::fp32;                             // this deck's
    EXPECT_EQ(rule(parameter.name), expected) << parameter.name;
  }
  EXPECT_EQ(common, static_cast<int>(table.parameters().size()) - 20);
}

// Without coefficient nets the model has further learned scalars, whose published rates are those of record 84.
TEST(Inputs, Record89TrainsWithoutGateNets) {
  Config config = read_deck("record89");
  config.model.gate_nets = false;
  config.model.composed_layers.clear();
  const ParameterTable table(config.model);
  for (const char* name : {"block.1.xsa", "block.3.injection"}) {
    EXPECT_EQ(hyperparameters(config, table.find(name)), in_every_second_step({Rule::adam, 0.008, 0.9, 0.95, 0}))
        << name;
  }
  EXPECT_EQ(hyperparameters(config, table.find("block.3.attention_gate")),
            in_every_second_step({Rule::adam, 0.008, 0.9, 0.99, 0.005, StateFormat::bf16}));
  if (computes_in_fp32) {
    EXPECT_NO_THROW(check_config(config, 1));
  }
}

// Adam's default rates are those of other records.
TEST(Inputs, GroupsOfRecord89NameEveryTensorOfAdam) {
  const Config config = read_deck("record89");
  const ParameterTable table(config.model);
  std::set<std::size_t> used;
  for (const Parameter& parameter : table.parameters()) {
    std::size_t group = 0;
    while (group < config.group.size() && std::ranges::none_of(config.group[group].tensors, [&](const auto& pattern) {
             return matches(pattern, parameter.name);
           })) {
      ++group;
    }
    const Hyperparameters rule = hyperparameters(config, parameter);
    if (parameter.group == Group::matrix) {
      const bool mlp_out = parameter.name.ends_with(".mlp_out");
      EXPECT_DOUBLE_EQ(rule.lr, mlp_out ? 4 * 0.023 : 0.023) << parameter.name;
      EXPECT_EQ(rule.decay, 1.2) << parameter.name;
    } else if (parameter.group != Group::fixed) {
      EXPECT_LT(group, config.group.size()) << parameter.name;
    }
    used.insert(group);
  }
  for (std::size_t group = 0; group < config.group.size(); ++group) EXPECT_TRUE(used.contains(group)) << group;
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
  EXPECT_EQ(read_deck("record89").model.init_scale, std::sqrt(3.0) / 2);
  EXPECT_EQ(read_deck("record89").model.norm_eps, std::ldexp(1.0, -23));
  EXPECT_EQ(read_deck("record89").head.scale_g, 448 / 0.75);
}

TEST(Inputs, GradientScalesOfFp8BelongToTheLength) {
  for (const char* name : {"record20", "record21"}) {
    const Config config = read_deck(name);
    EXPECT_EQ(config.head.precision, LmHeadChoice::fp8) << name;
    EXPECT_EQ(config.head.scale_g_length, config.train.length) << name;
    EXPECT_TRUE(config.set_at.contains("head.scale_g_length")) << name;
  }
}

TEST(Inputs, KeyReferenceIsCurrent) {
  EXPECT_TRUE(read_file(source_folder / "docs/keys.md") == key_reference())
      << "docs/keys.md is stale; renew it with: build/cpu/bin/nanorun keys > docs/keys.md";
}

TEST(Inputs, PlanOfRecord89SaysTheWorkOfEachStage) {
  const Config config = read_deck("record89");
  const ParameterTable table(config.model);
  const std::string text = plan_text(config, table, plan_of(config, table, NodeLayout::consecutive(8, 0)));
  for (const char* line :
       {"stage 0, 423 steps               131072 tokens", "stage 1, 424 steps               262144 tokens",
        "stage 2, 423 steps               393216 tokens", "stage 3, 15 steps                393216 tokens",
        "tokens of all steps              338821120\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  EXPECT_EQ(text.find("warning"), std::string::npos) << text;
}
