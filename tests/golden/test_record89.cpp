// The mechanisms of records 89 and 81 against reference89.py: same initial values, same sequences, 20 steps over all
// stages.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "src/commands/evaluate_hellaswag.hpp"
#include "tests/golden/after_record89.hpp"
#include "tests/golden/record89_configs.hpp"
#include "tests/support/alive_weights.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/tiny_training.hpp"

namespace nanorun {
namespace {

const std::string folder = NANORUN_GOLDEN_FOLDER "/";

/// Relative error, of what is nearly zero on an absolute scale.
void expect_close(double value, double golden, double tolerance, double floor, double& worst, const std::string& what) {
  const double error = std::abs(value - golden) / std::max(std::abs(golden), floor);
  worst = std::max(worst, error);
  EXPECT_LE(error, tolerance) << what << ": " << value << " against " << golden;
}

/// Tolerances of the norms of tensors and of learned scalars.
struct NormTolerance {
  double tensor, scalar = tensor;
};

template <class Norm>
void expect_norms(const ParameterTable& table, const Norm& norm, const nlohmann::json& golden,
                  const NormTolerance& tolerance, double floor, const std::string& what) {
  double worst_tensor = 0, worst_scalar = 0;
  for (const Parameter& p : table.parameters()) {
    if (p.group == Group::fixed) continue;
    ASSERT_TRUE(golden.contains(p.name)) << p.name;
    const bool scalar = p.offset >= table.tensor_size();
    expect_close(norm(p), golden.at(p.name), scalar ? tolerance.scalar : tolerance.tensor, floor,
                 scalar ? worst_scalar : worst_tensor, what + " of " + p.name);
  }
  std::printf("largest relative difference, %s: %.1e, of scalars %.1e\n", what.c_str(), worst_tensor, worst_scalar);
}

std::vector<kernels::Token> flat(const nlohmann::json& steps) {
  std::vector<kernels::Token> tokens;
  for (const auto& rows : steps) {
    for (const auto& row : rows) tokens.insert(tokens.end(), row.begin(), row.end());
  }
  return tokens;
}

/// Adds to the weights that start at zero what zero_starts = False adds in the reference.
void make_alive(Learner<Real>& learner) {
  nanorun::make_alive(learner, {{"*.mlp_out", 0.03},
                                {"bigram", 0.5},
                                {"smear_gate", 0.5},
                                {"smear_factor", 0.5},
                                {"*.value_gate", 0.5},
                                {"*_net.*.out", 0.1},
                                {"*_net.*.bias", 1},
                                {"*.xsa", 0.5},
                                {"skip_gate", 0.5},
                                {"*.injection", 0.1},
                                {"*.attention_gate", 0.5}});
}

/// Relative agreement of losses, of norms of gradients before the first update and later, and of final norms. After 14
/// steps the gradients of learned scalars hang on the last digits: of record 81 that of one moves by 1.7e-3 of itself
/// when muon_lr does by 1e-7.
struct Tolerance {
  double loss = 1e-4, later_loss = loss;  ///< later: from step 10 on
  NormTolerance first_gradient{1e-3}, later_gradient{1e-3, 4e-3}, final{1e-4};
};

/// Activations and weights of 8 significant bits. The gradients of learned scalars are sums over all elements of a
/// tensor, in which far larger terms cancel, and once Adam has moved the scalars by its learning rate, whatever the
/// gradient's size, the runs differ: the reference itself, in fp32 and with random errors of 0.4 % in the gradients of
/// tensors and of 3 % in those of scalars, differs by up to 4e-4 in the first ten losses and 2e-3 in later ones, 0.29
/// and 1.4 in later gradients of tensors and scalars, 8e-3 and 0.10 at the end (four runs). On an H200, which rounds
/// more: 4e-4 and 5.3e-3, 0.24 and 2.4, 5.5e-3 and 0.10; and in the first gradients 6.8e-3 and 0.18. About twice the
/// larger one is allowed.
constexpr Tolerance bf16_tolerance{1e-3, 0.01, {0.014, 0.4}, {0.6, 4.8}, {0.016, 0.2}};

#define SKIP_WITHOUT_HEADS_OF_128(config)                                           \
  if (!device_ready()) GTEST_SKIP() << "no CUDA device on this machine";            \
  if (!computes_in_fp32 && (config).model.head_dim != 128) {                        \
    GTEST_SKIP() << "heads of " << (config).model.head_dim << " run on CPUs alone"; \
  }

/// Mean validation loss before a step over the golden file's sequences.
double validation_loss(Learner<Real>& learner, const nlohmann::json& golden, long step) {
  Trace trace = untraced(test_comm(), test_streams().compute);
  learner.optimizer.complete_rows();
  double sum = 0;
  for (const auto& row : golden.at("validation_sequences")) {
    const std::vector<kernels::Token> tokens(row.begin(), row.end());
    sum += learner.model.validate(trace, Sequence::of(tokens), step);
  }
  return sum / static_cast<double>(golden.at("validation_sequences").size());
}

/// Where the weights start: as the model says, many of them at zero, or none at zero.
enum class Start { with_zeros, alive };

void compare(const std::string& name, const Config& config, Start start, const Tolerance& tolerance = {}) {
  SKIP_WITHOUT_HEADS_OF_128(config)
  const nlohmann::json golden = nlohmann::json::parse(read_text(folder + name + ".json"));
  TinyTraining training(config, flat(golden.at("sequences")), 60, test_comm());
  training.model.set_prefixes(golden.at("prefix_table").get<std::vector<std::int32_t>>());
  if (start == Start::alive) make_alive(training);
  const ParameterTable& table = training.table;
  const auto weight_norm = [&](const Parameter& p) { return training.weight_norm(p); };
  const auto gradient_norm = [&](const Parameter& p) { return training.gradient_norm(p) / 2; };
  expect_norms(table, weight_norm, golden.at("initial_norms"), {1e-6}, 1e-9, "initial norm");
  double worst = 0;
  const auto of_loss = [&](int step) { return step < 10 ? tolerance.loss : tolerance.later_loss; };
  const auto expect_validation = [&](int step) {
    const nlohmann::json& losses = golden.at("validation_losses");
    if (!losses.contains(std::to_string(step))) return;
    expect_close(validation_loss(training, golden, step), losses.at(std::to_string(step)), of_loss(step), 1, worst,
                 fmt::format("validation loss before step {}", step));
  };
  for (int step = 0; step < 20; ++step) {
    expect_validation(step);
    expect_close(training.forward_backward(), golden.at("losses")[step], of_loss(step), 1, worst,
                 fmt::format("loss of step {}", step));
    const std::string key = std::to_string(step);
    if (golden.at("gradient_norms").contains(key)) {
      expect_norms(table, gradient_norm, golden.at("gradient_norms").at(key),
                   step == 0 ? tolerance.first_gradient : tolerance.later_gradient, 1e-3, "gradient norm, step " + key);
    }
    training.update();
  }
  expect_validation(20);
  std::printf("largest difference, loss: %.1e\n", worst);
  expect_norms(table, weight_norm, golden.at("final_norms"), tolerance.final, 1e-9, "final norm");
}

/// With heads of 128.
Config wide_config() {
  Config config = blocks_config();
  config.model.width = 256;
  config.model.heads = 2;
  config.model.head_dim = 128;
  if (!computes_in_fp32) config.head.precision = LmHeadChoice::bf16;
  return config;
}

/// Everything of after_record89.hpp.
void set_all_after(Config& config) {
  set_taper(config);
  set_two_momenta(config);
  config.optimizer.orthogonalisation = Orthogonalisation::six_maps;
  set_late_tables(config);
}

Config after_wide_config() {
  Config config = wide_config();
  set_all_after(config);
  return config;
}

/// With products in FP8. While the weights are those of the reference up to fp32, few values lie so near the middle of
/// two 8-bit values that they round to the other one; where one does, the gradients of scalars, most of which cancel,
/// show it. Updates then carry these steps of up to 1/8 into all weights, and these into further roundings. From six
/// starts that differ by 1e-7 the reference itself, in fp32, is up to 1.8e-3 from the golden losses of blocks_fp8, and
/// up to 2.2e-3 and 7.6e-3 from the first gradients and final norms of scalars. About twice that is allowed.
struct Fp8Tolerance {
  double loss[3] = {1e-7, 1.2e-5, 4e-3};  ///< in steps 0, 1 and later
  NormTolerance gradient{5e-3}, final{2e-2};
  double floor = 1e-3;  ///< of gradients: errors of smaller ones are relative to it
};

void compare_fp8(const std::string& name, const Config& config, Start start, const Fp8Tolerance& tolerance = {}) {
  SKIP_WITHOUT_HEADS_OF_128(config)
  if (!ops::has_fp8()) GTEST_SKIP() << "the device has no products of 8 bits";
  const nlohmann::json golden = nlohmann::json::parse(read_text(folder + name + ".json"));
  TinyTraining training(config, flat(golden.at("sequences")), 60, test_comm());
  training.model.set_prefixes(golden.at("prefix_table").get<std::vector<std::int32_t>>());
  if (start == Start::alive) make_alive(training);
  double worst[3] = {};
  const auto steps = static_cast<int>(golden.at("losses").size());
  for (int step = 0; step < steps; ++step) {
    const int phase = std::min(step, 2);
    expect_close(training.forward_backward(), golden.at("losses")[step], tolerance.loss[phase], 1, worst[phase],
                 fmt::format("loss of step {}", step));
    if (step == 0) {
      expect_norms(
          training.table, [&](const Parameter& p) { return training.gradient_norm(p) / 2; },
          golden.at("gradient_norms").at("0"), tolerance.gradient, tolerance.floor, "gradient norm, step 0");
    }
    training.update();
  }
  std::printf("largest difference, loss: %.1e in step 0, %.1e in step 1, %.1e later\n", worst[0], worst[1], worst[2]);
  expect_norms(
      training.table, [&](const Parameter& p) { return training.weight_norm(p); }, golden.at("final_norms"),
      tolerance.final, 1e-9, "final norm");
}

/// What a config of SWITCHES in record89/config.py switches off, or has in its earlier form.
struct Switch {
  const char* name;
  void (*set)(Config&);
  NormTolerance final{1e-4};
};

void without_mudd(Config& config) { config.model.mudd = false; }

/// In the groups whose first pattern is one of these.
void keep_in_bf16(Config& config, GroupFormat GroupConfig::*format, const std::set<std::string>& first_patterns) {
  for (GroupConfig& group : config.group) {
    if (first_patterns.contains(group.tensors[0])) group.*format = GroupFormat::bf16;
  }
}

const Switch switches[] = {
    {"no_paired", [](Config& c) { c.model.paired_layers.clear(); }},
    {"no_xsa", [](Config& c) { c.model.xsa_layers.clear(); }},
    {"no_gates", [](Config& c) { c.model.gated_layers.clear(); }},
    {"no_dc", [](Config& c) { c.model.composed_layers.clear(); }},
    {"no_key_offset", [](Config& c) { c.model.key_offset_layers.clear(); }},
    {"no_smear", [](Config& c) { c.model.smear = false; }},
    {"no_bigram", [](Config& c) { c.model.bigram_rows = c.model.bigram_sign_rows = 0; }},
    {"no_yarn", [](Config& c) { c.model.yarn = false; }},
    {"whole_heads", [](Config& c) { c.optimizer.muon_block_heads = 0; }},
    {"newton_schulz", [](Config& c) { c.optimizer.orthogonalisation = Orthogonalisation::newton_schulz; }},
    {"no_second_moment", [](Config& c) { c.optimizer.normuon_beta = 0; }},
    {"every_step",
     [](Config& c) {
       c.optimizer.adam_period = 1;
       c.train.untie_step = 12;
     }},
    {"no_mudd", without_mudd},
    {"no_skip",
     [](Config& c) {
       without_mudd(c);
       c.model.skip_from = c.model.skip_to = {};
     }},
    {"no_late_source",
     [](Config& c) {
       without_mudd(c);
       c.model.attention_source = -1;
     }},
    {"no_values",
     [](Config& c) {
       without_mudd(c);
       c.model.value_path = ValuePath::none;
       c.model.value_layers.clear();
     }},
    {"scalars", without_gate_nets},
    {"scalars_no_mudd",
     [](Config& c) {
       without_gate_nets(c);
       without_mudd(c);
     }},
    {"skip_gate",
     [](Config& c) {
       without_gate_nets(c);
       c.model.skip_gate = true;
     }},
    {"gated_pairs", [](Config& c) { c.model.gated_layers = layers_with_attention; }},
    {"gated_by_input",
     [](Config& c) {
       c.model.value_layers_gated_by_input = {2, 8};
     }},
    {"narrow_bigrams", [](Config& c) { c.model.bigram_columns = 20; }},
    {"narrow_bigrams_no_signs",
     [](Config& c) {
       c.model.bigram_columns = 20;
       c.model.bigram_sign_rows = 0;
     }},
    {"tanh_softcap",
     [](Config& c) {
       c.model.softcap_kind = kernels::SoftcapKind::tanh;
       c.model.softcap = 15;
     }},
    {"next_token",
     [](Config& c) {
       for (StageConfig& stage : c.stage) {
         stage.targets = stage.targets_end = {1};
         stage.prefix = stage.prefix_end = 0;
       }
     }},
    {"no_decay",
     [](Config& c) {
       c.optimizer.muon_decay = 0;
       for (GroupConfig& group : c.group) group.decay = 0;
     }},
    {"mudd_scales",
     [](Config& c) {
       c.model.mudd_scale = 0.2;
       c.model.mudd_value_scale = 1.5;
       c.model.mudd_backout = -0.25;
     }},
    {"candidates",
     [](Config& c) {
       c.model.vocabulary = 500;
       c.stage[0].candidates = 128;
       c.stage[1].candidates = 256;
       c.stage[2].candidates = 384;
     }},
    // fp32 sums in another order let a value round to the neighbouring bf16, and the gradients of scalars follow. From
    // 24 starts that differ in their last bits the reference in fp32 ends up to 8.4e-5 (tensors) and 4.2e-4 (scalars)
    // from the golden file with bf16 masters, 1.0e-4 and 1.8e-4 with moments too. Twice that is allowed. Masters that
    // are not rounded would be off by 2.4e-3 and 7.3e-3.
    {"bf16_masters",
     [](Config& c) {
       keep_in_bf16(c, &GroupConfig::master,
                    {"head", "value_embedding.*", "smear_gate", "*.value_gate", "mudd_net.*", "gate_net.*"});
     },
     {1.7e-4, 8.4e-4}},
    {"bf16_moments",
     [](Config& c) {
       keep_in_bf16(c, &GroupConfig::master, {"head", "value_embedding.*"});
       keep_in_bf16(c, &GroupConfig::moments, {"head", "value_embedding.*"});
     },
     {2e-4, 3.7e-4}},
    {"taper", set_taper},
    {"two_momenta", set_two_momenta},
    {"six_maps", [](Config& c) { c.optimizer.orthogonalisation = Orthogonalisation::six_maps; }},
    {"late_tables", set_late_tables},
    {"after_record89", set_all_after},
    {"narrow", set_narrow},
    {"narrow_everywhere",
     [](Config& c) {
       set_two_momenta(c);
       c.optimizer.orthogonalisation = Orthogonalisation::six_maps;
       c.model.qk_dims = {4};
     }},
    {"narrow_after_record89",
     [](Config& c) {
       set_all_after(c);
       set_narrow(c);
     }},
};

class Record89With : public testing::TestWithParam<Switch> {};

TEST_P(Record89With, AgreesWithTheReference) {
  SKIP_WITHOUT_HEADS_OF_128(blocks_config())
  const nlohmann::json base = nlohmann::json::parse(read_text(folder + "record89_blocks_alive.json"));
  const nlohmann::json all = nlohmann::json::parse(read_text(folder + "record89_switches.json"));
  const nlohmann::json& golden = all.at(GetParam().name);
  Config config = blocks_config();
  GetParam().set(config);
  const nlohmann::json& read = golden.contains("sequences") ? golden : base;
  TinyTraining training(config, flat(read.at("sequences")), 60, test_comm());
  training.model.set_prefixes(base.at("prefix_table").get<std::vector<std::int32_t>>());
  make_alive(training);
  double worst = 0;
  for (int step = 0; step < 20; ++step) {
    expect_close(training.forward_backward(), golden.at("losses")[step], 1e-4, 1, worst,
                 fmt::format("loss of step {}", step));
    training.update();
  }
  std::printf("largest difference, loss: %.1e\n", worst);
  expect_norms(
      training.table, [&](const Parameter& p) { return training.weight_norm(p); }, golden.at("final_norms"),
      GetParam().final, 1e-9, "final norm");
}

INSTANTIATE_TEST_SUITE_P(Each, Record89With, testing::ValuesIn(switches),
                         [](const auto& info) { return std::string(info.param.name); });

/// Smear, bigrams and key offset must not reach over the start of an ending's document.
TEST(Record89, HellaSwag) {
  SKIP_WITHOUT_HEADS_OF_128(blocks_config())
  const nlohmann::json golden = nlohmann::json::parse(read_text(folder + "hellaswag_record89.json"));
  const kernels::Token end_of_text = golden.at("end_of_text");
  Config config = blocks_config();
  config.model.vocabulary = end_of_text + 1;
  config.model.init_embedding = 0.5;
  const std::vector<Question> questions = read_hellaswag(folder + "hellaswag.bin", config.model.vocabulary);
  config.validation.length = hellaswag_length(questions, config.model, 0);
  TinyTraining training(config, {}, end_of_text, test_comm());
  make_alive(training);
  Trace trace = untraced(test_comm(), test_streams().compute);
  const std::vector<EndingLosses> losses =
      hellaswag_losses(test_comm(), trace, training.model, config, questions, end_of_text, config.train.steps);
  double worst = 0;
  ASSERT_EQ(golden.at("ending_losses").size(), losses.size());
  for (std::size_t q = 0; q < losses.size(); ++q) {
    for (std::size_t e = 0; e < hellaswag_endings; ++e) {
      expect_close(losses[q][e], golden.at("ending_losses")[q][e], 1e-5, 1, worst,
                   fmt::format("loss of ending {} of question {}", e, q));
    }
  }
  std::printf("largest relative difference, loss of an ending: %.1e\n", worst);
  const HellaswagScore score = hellaswag_score(questions, losses);
  EXPECT_EQ(score.by_sum, golden.at("right_by_sum"));
  EXPECT_EQ(score.by_mean, golden.at("right_by_mean"));
}

TEST(Record89, Blocks) { compare("record89_blocks", blocks_config(), Start::with_zeros); }
TEST(Record89, BlocksWithoutZeroStarts) { compare("record89_blocks_alive", blocks_config(), Start::alive); }
TEST(Record89, BlocksWithHeadsOf128) {
  compare("record89_blocks_wide", wide_config(), Start::alive, computes_in_fp32 ? Tolerance{} : bf16_tolerance);
}
/// With two momenta alone the reference in fp32 differs by 1.5e-4 in the losses and 1.1e-4 in the scalars at the end.
TEST(Record89, WithAllThatFollowsAndHeadsOf128) {
  const Tolerance tolerance = computes_in_fp32 ? Tolerance{.final = {1e-4, 2.2e-4}} : bf16_tolerance;
  compare("record89_blocks_after_wide", after_wide_config(), Start::alive, tolerance);
}
TEST(Record89, BlocksWithFp8Mlp) {
  Config config = blocks_config();
  config.train.mlp_precision = MlpPrecision::fp8;
  compare_fp8("record89_blocks_fp8", config, Start::alive);
}
TEST(Record89, BlocksWithFp8InBothPasses) {
  Config fixed = blocks_config(), delayed = fixed, zero = fixed;
  fixed.fp8 = {fixed_fp8_mlp, fixed_fp8_qkv};
  zero.fp8.mlp = fixed_fp8_mlp;
  // As in Fp8Tolerance: with QKV in e4m3 too, losses of step 1 and later ones 2.1e-5 and 6.7e-3, gradients of scalars
  // 3.3e-2, final norms of scalars 3.5e-2, and with the kernels Prescott of OpenBLAS 9e-2 here; with outputs that start
  // at zero, final norms of tensors 1.9e-2; with delayed scales, later losses 6.0e-3, gradients and final norms of
  // scalars 1.6e-2 and 2.6e-2.
  compare_fp8("record89_blocks_fp8_fixed", fixed, Start::alive,
              {.loss = {1e-7, 4.2e-5, 1.4e-2}, .gradient = {5e-3, 6.6e-2}, .final = {2e-2, 0.18}});
  compare_fp8("record89_blocks_fp8_zero", zero, Start::with_zeros, {.final = {3.8e-2}});
  delayed.fp8.mlp = delayed_fp8_mlp;
  compare_fp8("record89_blocks_fp8_delayed", delayed, Start::alive,
              {.loss = {1e-7, 1.2e-5, 1.2e-2}, .gradient = {5e-3, 3.2e-2}, .final = {2e-2, 5.2e-2}});
}
/// On CUDA devices too. With more hidden units more lie near the middle of two 8-bit values: from five starts that
/// differ by 1e-7 the reference itself, in fp32, is up to 4.4e-6 and 2.0e-5 from the golden losses of steps 0 and 1,
/// and up to 8.9e-2 from the gradients of scalars, most of which cancel (of 0.1, where they are smaller). Twice that is
/// allowed.
TEST(Record89, BlocksWithFp8AndNarrowHeadsOf128) {
  Config config = wide_config();
  config.run.seed = 3;
  config.model.qk_dims = {64, 64, 64, 128, 64, 64, 0, 64, 64, 64, 128};
  config.model.attention_scale = 0.085;
  config.model.attention_scale_narrow = 0.12;
  config.fp8 = {fixed_fp8_mlp, fixed_fp8_qkv};
  Fp8Tolerance tolerance{.loss = {9e-6, 4e-5, 2e-3}, .gradient = {5e-3, 0.18}, .floor = 0.1};
  if (!computes_in_fp32) {
    const Tolerance& bf16 = bf16_tolerance;
    tolerance = {{bf16.loss, bf16.loss, bf16.later_loss}, bf16.first_gradient, bf16.final, tolerance.floor};
  }
  compare_fp8("record89_blocks_fp8_narrow_wide", config, Start::alive, tolerance);
}
TEST(Record81, Blocks) { compare("record89_blocks81", record81_config(), Start::with_zeros); }
TEST(Record81, BlocksWithoutZeroStarts) { compare("record89_blocks81_alive", record81_config(), Start::alive); }

}  // namespace
}  // namespace nanorun
