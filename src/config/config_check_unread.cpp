// Keys that nothing reads, because what would read them is off.

#include <algorithm>
#include <string>

#include "src/base/text.hpp"
#include "src/config/config_check.hpp"
#include "src/config/config_keys.hpp"
#include "src/config/config_values.hpp"

namespace nanorun {

namespace {

/// What reads a key: whether the deck has it, and how the deck would say so.
struct Reader {
  const char* key;
  bool is_there;
  const char* name;
};

/// Refuses the reader's key where the reader is not there. A key with its default value counts as not given.
void require_reader(Rules& rules, const Reader& reader) {
  if (reader.is_there) return;
  const Key& key = *std::ranges::find(key_table(), reader.key, [](const Key& one) { return one.path(); });
  Config given = rules.config, defaults;
  const std::string value = value_text(key.field(given));
  rules.require(value == value_text(key.field(defaults)), {reader.key}, "{} = {} needs {}", reader.key,
                excerpt(value, 60), reader.name);
}

}  // namespace

void check_unread(Rules& rules) {
  const Config& config = rules.config;
  const ModelConfig& model = config.model;
  const OptimizerConfig& optimizer = config.optimizer;
  const bool outputs_start_at_zero = model.zero_outputs && model.zero_attention_outputs;
  const bool gates = model.smear || model.skip_gate || !model.value_layers.empty() ||
                     (!model.gated_layers.empty() && !model.gate_nets);
  const bool muon_on_matrices = optimizer.matrix_rule == MatrixRule::muon;
  const bool muon = muon_on_matrices || std::ranges::count(config.group, GroupRule::muon, &GroupConfig::rule) > 0;
  const bool outer = optimizer.outer_every > 0;
  const char* const gate_names = "model.smear, model.skip_gate, model.value_layers or model.gated_layers";
  const char* const muon_names = "optimizer.matrix_rule = \"muon\" or a [[group]] with rule = \"muon\"";
  const Reader readers[] = {
      {"model.init_std_outputs", model.init_std > 0, "model.init_std"},
      {"model.init_std_outputs", !outputs_start_at_zero, "model.zero_outputs = false"},
      {"model.init_embedding2", model.second_embedding, "model.second_embedding"},
      {"model.init_residual", model.residual == Residual::before, "model.residual = \"before\""},
      {"model.gate_columns", gates, gate_names},
      {"optimizer.orthogonalisation_maps", muon, muon_names},
      {"optimizer.orthogonalisation_steps", muon, muon_names},
      {"optimizer.muon_moments", muon, muon_names},
      {"optimizer.outer_lr", outer, "optimizer.outer_every"},
      {"optimizer.outer_momentum", outer, "optimizer.outer_every"},
  };
  for (const Reader& reader : readers) require_reader(rules, reader);
}

}  // namespace nanorun
