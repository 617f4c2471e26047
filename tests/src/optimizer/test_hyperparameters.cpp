#include "src/optimizer/hyperparameters.hpp"

#include <gtest/gtest.h>

#include "src/optimizer/averaged_rows.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/tiny_config.hpp"

namespace nanorun {
namespace {

TEST(Hyperparameters, StarsStandForAnyCharacters) {
  EXPECT_TRUE(matches("bigram", "bigram"));
  EXPECT_FALSE(matches("bigram", "bigram_sign"));
  EXPECT_TRUE(matches("bigram*", "bigram_sign"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("block.*.mlp_out", "block.10.mlp_out"));
  EXPECT_FALSE(matches("block.*.mlp_out", "block.10.mlp_in"));
  EXPECT_TRUE(matches("*_net.*.bias", "mudd_net.0.bias"));
  EXPECT_TRUE(matches("*a*a", "banana"));
  EXPECT_FALSE(matches("*a*b", "banana"));
  EXPECT_FALSE(matches("", "a"));
}

TEST(Hyperparameters, MatricesAreMuonsAndFixedTensorsNobodys) {
  const Config config = tiny_config();
  for (const Group group : {Group::embedding, Group::lm_head, Group::net, Group::scalar, Group::skip}) {
    EXPECT_EQ(rule_of(config, group), Rule::adam);
  }
  EXPECT_EQ(rule_of(config, Group::matrix), Rule::muon);
  EXPECT_EQ(rule_of(config, Group::fixed), Rule::fixed);
  const ParameterTable table(config.model);
  for (const Parameter& parameter : table.parameters()) {
    EXPECT_EQ(hyperparameters(config, parameter).rule, rule_of(config, parameter.group)) << parameter.name;
  }
}

TEST(Hyperparameters, MatricesAreAdamsWhereTheDeckSaysSo) {
  Config config = tiny_config();
  config.optimizer.matrix_rule = MatrixRule::adam;
  config.optimizer.lr_matrix = 0.002;
  config.optimizer.muon_decay = 1.5;
  config.group = {{{"*.mlp_in"}, 0.1, 0.5, 0.6, 0.7}};
  EXPECT_EQ(rule_of(config, Group::matrix), Rule::adam);
  EXPECT_EQ(rule_of(config, Group::fixed), Rule::fixed);
  const ParameterTable table(config.model);
  const OptimizerConfig& o = config.optimizer;
  EXPECT_EQ(hyperparameters(config, table.find("block.0.qkv")),
            (Hyperparameters{Rule::adam, 0.002, o.adam_beta1, o.adam_beta2, 0}));
  EXPECT_EQ(hyperparameters(config, table.find("block.0.mlp_in")), (Hyperparameters{Rule::adam, 0.1, 0.5, 0.6, 0.7}));
}

TEST(Hyperparameters, TheFirstGroupThatNamesATensorHasIt) {
  Config config = tiny_config();
  config.optimizer.muon_decay = 1.5;
  config.group = {{{"embedding"}, 0.1, 0.5, 0.6, 0.7}, {{"*embedding*", "block.*"}, 0.2, 0.3, 0.4, 0.5}};
  const ParameterTable table(config.model);
  EXPECT_EQ(hyperparameters(config, table.find("embedding")), (Hyperparameters{Rule::adam, 0.1, 0.5, 0.6, 0.7}));
  EXPECT_EQ(hyperparameters(config, table.find("value_embedding.0")),
            (Hyperparameters{Rule::adam, 0.2, 0.3, 0.4, 0.5}));
  // Muon's decay is one for all matrices.
  EXPECT_EQ(hyperparameters(config, table.find("block.1.mlp_in")).decay, 1.5);
  const OptimizerConfig& o = config.optimizer;
  EXPECT_EQ(hyperparameters(config, table.find("head")),
            (Hyperparameters{Rule::adam, o.lr_head, o.adam_beta1, o.adam_beta2, 0}));
}

TEST(Hyperparameters, GroupsThatNameNothingAreTold) {
  Config config = tiny_config();
  config.group = {{{"embedding", "bigram"}, 0.1}, {{"mudd_net.*"}, 0.1}};
  const std::vector<std::string> expected = {"warning: group.0.tensors: no tensor of the model is called bigram",
                                             "warning: group.1.tensors: no tensor of the model is called mudd_net.*"};
  EXPECT_EQ(group_warnings(config, ParameterTable(config.model)), expected);
}

TEST(Hyperparameters, FormatsAreThoseOfTheRuleOrTheGroup) {
  Config config = tiny_config();
  config.optimizer.adam_moments = StateFormat::bf16;
  config.group = {{{"embedding", "block.*.mlp_in"}, 0.1, 0.5, 0.6, 0.7, GroupFormat::bf16, GroupFormat::fp32}};
  const ParameterTable table(config.model);
  const auto formats = [&](const char* name) {
    const Hyperparameters hyper = hyperparameters(config, table.find(name));
    return std::pair(hyper.master, hyper.moments);
  };
  constexpr StateFormat fp32 = StateFormat::fp32, bf16 = StateFormat::bf16;
  EXPECT_EQ(formats("embedding"), std::pair(bf16, fp32));
  EXPECT_EQ(formats("head"), std::pair(fp32, bf16));
  EXPECT_EQ(formats("block.1.mlp_in"), std::pair(fp32, fp32));
  EXPECT_EQ(formats("block.1.mlp_out"), std::pair(fp32, fp32));
  config.optimizer.muon_moments = bf16;
  EXPECT_EQ(formats("block.1.mlp_in"), std::pair(fp32, fp32)) << "the group's";
  EXPECT_EQ(formats("block.1.mlp_out"), std::pair(fp32, bf16));
  EXPECT_EQ(group_warnings(config, table).back(),
            "warning: group.0.master = \"bf16\" is Adam's: Muon updates block.3.mlp_in in fp32; 3 more tensors of the "
            "group likewise");
  config.model.tied_head = true;
  EXPECT_EQ(formats("embedding"), std::pair(fp32, bf16)) << "as the head";
  config.train.untie_step = -1;
  EXPECT_EQ(formats("embedding"), std::pair(bf16, fp32));
  config.group[0].master = config.group[0].moments = GroupFormat::automatic;
  EXPECT_EQ(formats("embedding"), std::pair(fp32, bf16)) << "Adam's";
  EXPECT_EQ(formats("block.1.mlp_in"), std::pair(fp32, bf16)) << "Muon's";
  for (const std::string& warning : group_warnings(config, table)) {
    EXPECT_EQ(warning.find(".master"), std::string::npos) << warning;
  }
  config.optimizer.adam_master = bf16;
  config.optimizer.adam_moments = config.optimizer.muon_moments = fp32;
  EXPECT_EQ(formats("embedding"), std::pair(bf16, fp32));
  EXPECT_EQ(formats("block.1.mlp_in"), std::pair(fp32, fp32));
}

Config gated_config() {
  Config config = tiny_config();
  config.model.residual = Residual::scaled;
  config.model.value_path = ValuePath::none;
  config.model.gated_layers = {1, 2};
  config.model.smear = true;
  config.group = {{{"block.*.attention_gate"}, 0.1, 0.5, 0.6, 0.7, GroupFormat::bf16, GroupFormat::bf16}};
  config.group[0].rule = GroupRule::muon;
  return config;
}

TEST(Hyperparameters, GatesMayBeMuons) {
  Config config = gated_config();
  config.optimizer.muon_decay = 1.5;
  const ParameterTable table = parameter_table(config);
  EXPECT_EQ(table.layout(), ParameterTable(config.model).layout());
  const Parameter& gate = table.find("block.2.attention_gate");
  EXPECT_EQ(gate.group, Group::scalar_matrix);
  EXPECT_EQ(table.find("smear_gate").group, Group::scalar);
  EXPECT_EQ(ParameterTable(config.model).find("block.2.attention_gate").group, Group::scalar);
  const Hyperparameters hyper = hyperparameters(config, gate);
  EXPECT_EQ(hyper.rule, Rule::muon);
  EXPECT_EQ(hyper.lr, 0.1);
  EXPECT_EQ(hyper.decay, 1.5);
  EXPECT_EQ(hyper.master, StateFormat::bf16);
  EXPECT_EQ(hyper.moments, StateFormat::bf16);
  for (const std::string& warning : group_warnings(config, table)) {
    EXPECT_EQ(warning.find("master"), warning.npos) << warning;
  }
  const auto bucket = std::ranges::find(table.buckets(), Group::scalar_matrix, &Bucket::group);
  ASSERT_NE(bucket, table.buckets().end());
  EXPECT_EQ(bucket->units, 2u);
  EXPECT_EQ(bucket->unit_size, gate.size());
  EXPECT_EQ(bucket->rows, config.model.heads);
}

TEST(Hyperparameters, MuonDoesNotUpdateEverything) {
  const auto error = [](const Config& config) {
    return error_of([&] { check_group_rules(config); }, ExitCode::usage, Scope::all_ranks);
  };
  Config config = gated_config();
  EXPECT_EQ(error(config), "");
  config.group[0].tensors = {"head"};
  EXPECT_EQ(error(config),
            "group.0.rule = \"muon\": head is neither a matrix of the blocks nor learned scalars of rows and columns");
  config.group[0].tensors = {"block.0.qkv"};
  EXPECT_EQ(error(config), "");
  config.optimizer.matrix_rule = MatrixRule::adam;
  EXPECT_EQ(error(config),
            "group.0.rule = \"muon\": block.0.qkv is a matrix of the blocks, which optimizer.matrix_rule = \"adam\" "
            "updates");
}

TEST(Hyperparameters, LookupTablesAloneHaveAPeriodOfTheirOwn) {
  Config config = tiny_config();
  const auto error = [&] { return error_of([&] { check_group_rules(config); }, ExitCode::usage, Scope::all_ranks); };
  config.optimizer.adam_period = 2;
  config.group = {{{"value_embedding.*"}, 0.1}};
  config.group[0].period = 4;
  config.group[0].period_from = 336;
  EXPECT_EQ(error(), "");
  const ParameterTable table(config.model);
  const UpdateSteps updates = hyperparameters(config, table.find("value_embedding.0")).updates;
  EXPECT_EQ(updates, (UpdateSteps{2, 4, 336}));
  EXPECT_EQ(hyperparameters(config, table.find("head")).updates, (UpdateSteps{2, 2}));
  EXPECT_EQ(hyperparameters(config, table.find("block.0.qkv")).updates, UpdateSteps{});
  config.group[0].tensors = {"head"};
  EXPECT_EQ(error(), "group.0.period = 4: head is no lookup table");
  config.group[0].tensors = {"embedding"};
  EXPECT_EQ(error(), "");
  config.model.tied_head = true;
  EXPECT_EQ(error(), "group.0.period = 4: embedding is tied to the LM head (model.tied_head)");
}

TEST(Hyperparameters, VectorsAndSingleNumbersAreNotMuons) {
  Config config = gated_config();
  const auto error = [&](const std::string& tensor) {
    config.group[0].tensors = {tensor};
    return error_of([&] { check_group_rules(config); }, ExitCode::usage, Scope::all_ranks);
  };
  const std::string rule = "group.0.rule = \"muon\": ",
                    instead = "; Muon takes gates, and learned scalars of several rows and columns";
  EXPECT_EQ(error("block.*.attention_gate"), "");
  EXPECT_EQ(error("smear_factor"),
            rule + "smear_factor is a single number, which Muon would move by the sign of its momentum");
  EXPECT_EQ(error("*_gate"), "") << "the smear's has one row";
  EXPECT_EQ(error("block.0.attention_factors"), rule + "block.0.attention_factors is a vector of 2 numbers" + instead);
  config.model.residual = Residual::plain;
  config.model.gated_layers.clear();
  config.model.smear = false;
  config.model.norm_gains = config.model.biases = true;
  EXPECT_EQ(error("block.0.qkv_bias"), rule + "block.0.qkv_bias is a vector of 48 numbers" + instead);
  EXPECT_EQ(error("final_gain"), rule + "final_gain is a vector of 16 numbers" + instead);
}

/// A deck with groups, for messages that name places in it.
Config deck_with(const std::string& groups, const std::vector<std::string>& overrides = {}) {
  Config config = parse_deck(groups, "d.toml", overrides);
  const Config tiny = tiny_config();
  config.model = tiny.model;
  return config;
}

TEST(Hyperparameters, ErrorsNameThePlaceAndOneTensorForEachKey) {
  const auto error = [](const std::string& deck, const std::vector<std::string>& overrides) {
    const Config config = deck_with(deck, overrides);
    return error_of([&] { check_group_rules(config); }, ExitCode::usage, Scope::all_ranks);
  };
  const std::string others = "[[group]]\ntensors = [\"smear_gate\"]\n",
                    matrices = others + "[[group]]\ntensors = [\"block.*.mlp_in\"]\n";
  EXPECT_EQ(error(matrices + "rule = \"muon\"\n", {"optimizer.matrix_rule=adam"}),
            "d.toml:5: group.1.rule = \"muon\": block.3.mlp_in is a matrix of the blocks, which optimizer.matrix_rule "
            "= \"adam\" updates; 3 more tensors of the group cannot have it either");
  EXPECT_EQ(error(matrices, {"group.1.period=4"}),
            "override group.1.period=4: group.1.period = 4: block.3.mlp_in is no lookup table; 3 more tensors of the "
            "group cannot have it either");
  EXPECT_EQ(error(others + "[[group]]\nrule = \"muon\"\ntensors = [\"head\", \"embedding\"]", {}),
            "d.toml:4: group.1.rule = \"muon\": head is neither a matrix of the blocks nor learned scalars of rows and "
            "columns; 1 more tensor of the group cannot have it either");
}

TEST(Hyperparameters, WarningsNameThePlace) {
  const std::string deck =
      "[[group]]\nmaster = \"bf16\"\ntensors = [\"*.mlp_in\", \"bigram\"]\n[[average]]\ntensors = [\"heads\"]\n";
  const auto warnings = [](const Config& config) { return group_warnings(config, ParameterTable(config.model)); };
  const std::string masters =
                        "group.0.master = \"bf16\" is Adam's: Muon updates block.3.mlp_in in fp32; 3 more tensors of "
                        "the group likewise",
                    bigram = "warning: d.toml:3: group.0.tensors: no tensor of the model is called bigram";
  const Config config = deck_with(deck);
  EXPECT_EQ(warnings(config), (std::vector<std::string>{"warning: d.toml:2: " + masters, bigram}));
  EXPECT_EQ(warnings(deck_with(deck, {"group.0.master=bf16"})),
            (std::vector<std::string>{"warning: override group.0.master=bf16: " + masters, bigram}));
  EXPECT_EQ(
      average_warnings(config, ParameterTable(config.model)),
      std::vector<std::string>{"warning: d.toml:5: average.0.tensors: no trained tensor of the model is called heads"});
}

TEST(Hyperparameters, KeysOfAdamThatMuonLacksAreTold) {
  const std::string deck =
      "[[group]]\ntensors = [\"*.mlp_in\", \"head\"]\nlr = 0.1\nbeta1 = 0.9\nbeta2 = 0.9\ndecay = 50\n";
  const auto warnings = [](const Config& config) { return group_warnings(config, parameter_table(config)); };
  const std::string of_all = "; 3 more tensors of the group likewise";
  EXPECT_EQ(warnings(deck_with(deck)),
            (std::vector<std::string>{
                "warning: d.toml:4: group.0.beta1 = 0.9 is Adam's: Muon updates block.3.mlp_in with the momentum of "
                "optimizer.muon_momentum_first and _last" +
                    of_all,
                "warning: d.toml:5: group.0.beta2 = 0.9 is Adam's: Muon updates block.3.mlp_in with "
                "optimizer.normuon_beta" +
                    of_all,
                "warning: d.toml:6: group.0.decay = 50 is Adam's: Muon updates block.3.mlp_in with "
                "optimizer.muon_decay" +
                    of_all}));
  // Where all its tensors are Adam's, and with the defaults, which every resolved deck has.
  const std::vector<std::string> none;
  EXPECT_EQ(warnings(deck_with(deck, {"optimizer.matrix_rule=adam"})), none);
  EXPECT_EQ(warnings(deck_with(deck, {"group.0.tensors=head"})), none);
  EXPECT_EQ(warnings(deck_with(deck, {"group.0.beta1=0.8", "group.0.beta2=0.95", "group.0.decay=0"})), none);
  Config gates = gated_config();
  gates.group[0].beta1 = 0.8;
  gates.group[0].beta2 = 0.95;
  EXPECT_EQ(warnings(gates),
            std::vector<std::string>{"warning: group.0.decay = 0.7 is Adam's: Muon updates block.1.attention_gate with "
                                     "optimizer.muon_decay; 1 more tensor of the group likewise"});
}

TEST(Hyperparameters, OnlyMuonsWeightsAreTruncated) {
  Config config = tiny_config();
  const ParameterTable table(config.model);
  EXPECT_FALSE(hyperparameters(config, table.find("block.0.qkv")).truncates);
  config.optimizer.muon_truncates = true;
  for (const Parameter& parameter : table.parameters()) {
    EXPECT_EQ(hyperparameters(config, parameter).truncates, hyperparameters(config, parameter).rule == Rule::muon)
        << parameter.name;
  }
}

}  // namespace
}  // namespace nanorun
