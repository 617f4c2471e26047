#pragma once
// The mechanisms of record 89 for models of other sizes.

#include "src/config/config.hpp"

namespace nanorun {

/// Gives a model eleven layers with every mechanism of record 89 in the place that it has there. Sizes, among them
/// bigram_rows, composition_window and coefficient_width, stay as they are.
inline void add_record89_mechanisms(Config& config) {
  ModelConfig& model = config.model;
  model.layers = 11;
  model.layers_without_attention = {6};
  model.softcap = 23;
  model.softcap_kind = kernels::SoftcapKind::sigmoid;
  model.softcap_shift = 5;
  model.softcap_width = 7.5;
  model.residual = Residual::scaled;
  model.value_path = ValuePath::gated_embeddings;
  model.value_layers = {1, 2, 8, 9, 10};
  model.smear = true;
  model.skip_from = {3};
  model.skip_to = {6};
  model.attention_source = 7;
  model.paired_layers = {0, 2, 5, 9};
  model.xsa_layers = {1, 3, 4, 7};
  model.gated_layers = {3, 10};
  model.key_offset_layers = {3, 10};
  model.composed_layers = {10};
  model.gate_nets = true;
  model.mudd = true;
  config.window.layers = "SSSLSSSSSSL";
  config.window.kind = WindowKind::tokens_before;
}

/// The same with four heads of eight columns, for sequences of 256 tokens.
inline void add_small_record89(Config& config) {
  add_record89_mechanisms(config);
  ModelConfig& model = config.model;
  model.heads = 4;
  model.head_dim = 8;
  model.attention_scale = 0.3;
  model.bigram_rows = 300;
  model.bigram_sign_rows = 64;
  model.composition_window = 48;
  model.coefficient_width = 8;
  config.window.quantum = 32;
  config.train.length = config.validation.length = 256;
}

}  // namespace nanorun
