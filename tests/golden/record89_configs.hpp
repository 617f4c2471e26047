#pragma once
// Configs of record89/config.py: a small model with the mechanisms of record 89, or of record 81.

#include <string>
#include <utility>
#include <vector>

#include "src/config/config.hpp"
#include "tests/support/record89_mechanisms.hpp"

namespace nanorun {

/// Record 89's model, smaller.
inline void set_model(Config& config) {
  add_record89_mechanisms(config);
  ModelConfig& m = config.model;
  m.vocabulary = 61;
  m.width = 48;
  m.heads = 6;
  m.head_dim = 8;
  m.norm_eps = 0x1p-23;
  m.attention_scale = 0.1;
  m.init_scale = 0.8660254037844386;
  m.zero_attention_outputs = false;
  m.init_embedding = 0.005;
  m.init_value_embedding = 0.01;
  m.tied_head = true;
  m.bigram_rows = 79000;
  m.bigram_sign_rows = 16;
  m.composition_window = 10;
  m.coefficient_width = 16;
  m.yarn = true;
}

/// record_groups() of record89/config.py.
inline void add_groups(Config& config) {
  const auto group = [&](std::vector<std::string> names, double factor, double beta1, double beta2, double decay) {
    config.group.push_back({std::move(names), 0.008 * factor, beta1, beta2, 0.005 * decay});
  };
  config.group.push_back({{"block.*.mlp_out"}, 4 * 0.023, 0, 0, 0});
  group({"head", "embedding"}, 1, 0.5, 0.95, 150);
  group({"value_embedding.*", "bigram"}, 75, 0.75, 0.95, 5);
  group({"*.attention_factors", "smear_factor", "skip_factor"}, 5, 0.9, 0.99, 0);
  group({"smear_gate"}, 0.01, 0.9, 0.99, 0);
  group({"*.value_gate"}, 1, 0.9, 0.99, 1);
  group({"*_post"}, 1, 0.9, 0.95, 0);
  group({"*_residual"}, 5, 0.9, 0.95, 0);
  group({"mudd_net.*.bias"}, 0.25, 0.9, 0.99, 0);
  group({"mudd_net.*"}, 0.25, 0.9, 0.99, 1);
  group({"gate_net.*.bias", "gate_net.scale"}, 0.1, 0.9, 0.99, 0);
  group({"gate_net.*"}, 0.1, 0.9, 0.99, 1);
  group({"*.attention_gate"}, 1, 0.9, 0.99, 1);
  group({"*.xsa", "*.injection"}, 1, 0.9, 0.95, 0);
  group({"skip_gate"}, 0.05, 0.9, 0.99, 0);
}

inline Config blocks_config() {
  Config config;
  set_model(config);
  config.train.steps = 20;
  config.train.sequences = 2;
  config.train.extension_steps = 2;
  config.train.cooldown = 0.6;
  config.train.final_lr_factor = 0.15;
  config.train.loss = LossSum::sum;
  config.train.untie_step = 13;
  config.stage = {{1.0 / 3, 128, 24, 6, 16, 1, {1, 0.5, 0.25}, {1, 0.5, 0}, 0.25, 0.25},
                  {1.0 / 3, 256, 48, 12, 28, 1.52, {1, 0.5}, {1, 0}, 0.25, 0},
                  {1.0 / 3, 384, 48, 18, 40, 1.73, {1}, {1}, 0, 0},
                  {0, 384, 48, 22, 48, 1, {1}, {1}, 0, 0}};
  config.validation.length = 128;
  config.validation.last_long_window = 64;
  OptimizerConfig& o = config.optimizer;
  o.muon_lr = 0.023;
  o.muon_momentum_steps = 5;
  o.muon_momentum_cooldown = 4;
  o.orthogonalisation = Orthogonalisation::polar_express;
  o.muon_block_heads = 2;
  o.normuon_beta = 0.9;
  o.muon_decay = 1.2;
  o.adam_period = 2;
  o.adam_epsilon_hat = true;
  add_groups(config);
  return config;
}

inline const std::vector<int> layers_with_attention = {0, 1, 2, 3, 4, 5, 7, 8, 9, 10};

inline void without_gate_nets(Config& config) {
  config.model.gate_nets = false;
  config.model.composed_layers.clear();
}

/// RECORD81 of record89/config.py.
inline Config record81_config() {
  Config config = blocks_config();
  without_gate_nets(config);
  config.run.seed = 12;
  ModelConfig& m = config.model;
  m.skip_gate = true;
  m.xsa_layers.clear();
  m.bigram_sign_rows = 0;
  m.gated_layers = layers_with_attention;
  m.value_layers_gated_by_input = {2, 9};
  m.mudd_scale = 0.2 / std::sqrt(3);
  m.mudd_value_scale = 1.15;
  m.mudd_backout = 4.34 * m.mudd_scale;
  for (StageConfig& stage : config.stage) stage.prefix = stage.prefix_end = 0;
  return config;
}

}  // namespace nanorun
