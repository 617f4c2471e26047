// Rules of the deck that involve several keys.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <initializer_list>
#include <set>

#include "kernels/attention.hpp"
#include "src/config.hpp"
#include "src/error.hpp"
#include "src/text.hpp"

namespace nanorun {

namespace {

/// The keys of a rule, the likeliest fault first.
using Keys = std::initializer_list<const char*>;

/// Collects what is wrong. Every rank checks the same settings, so all meet the errors alike.
struct Rules {
  const Config& config;
  ErrorList errors;

  /// Returns `holds`.
  template <class... Args>
  bool require(bool holds, Keys keys, fmt::format_string<Args...> message, Args&&... args) {
    if (!holds) errors.add(place_of(keys) + fmt::format(message, std::forward<Args>(args)...));
    return holds;
  }

 private:
  /// "PLACE: " of the first of the keys that was set; empty where all are defaults.
  std::string place_of(Keys keys) const {
    for (const char* key : keys) {
      const auto at = config.places.find(key);
      if (at != config.places.end()) return at->second + ": ";
    }
    return "";
  }
};

void check_layers(Rules& rules) {
  const Config& config = rules.config;
  const ModelConfig& model = config.model;
  rules.require(
      model.width == std::int64_t{model.heads} * model.head_dim, {"model.width", "model.heads", "model.head_dim"},
      "model.width = {} must equal model.heads * model.head_dim = {} * {}", model.width, model.heads, model.head_dim);
  std::set<int> without;
  for (const int layer : model.layers_without_attention) {
    const bool known =
        rules.require(layer >= 0 && layer < model.layers, {"model.layers_without_attention", "model.layers"},
                      "model.layers_without_attention names layer {}; layers are 0 to {}", layer, model.layers - 1);
    const bool first = rules.require(without.insert(layer).second, {"model.layers_without_attention"},
                                     "model.layers_without_attention names layer {} twice", layer);
    if (!known || !first) break;
  }
  rules.require(
      model.value_path != ValuePath::first || !without.contains(0),
      {"model.value_path", "model.layers_without_attention"},
      "model.value_path = \"first\" needs the values of layer 0, which model.layers_without_attention excludes");
  rules.require(model.value_path != ValuePath::embeddings || 2 * std::int64_t{model.value_embeddings} <= model.layers,
                {"model.value_embeddings", "model.layers", "model.value_path"},
                "model.value_embeddings = {} must be at most half of model.layers = {}", model.value_embeddings,
                model.layers);
}

void check_window(Rules& rules) {
  const Config& config = rules.config;
  const WindowConfig& window = config.window;
  const int layers = config.model.layers;
  const auto letters = static_cast<int>(window.layers.size());
  rules.require(letters == 1 || letters == layers, {"window.layers", "model.layers"},
                "window.layers has {} letters; it needs one, or one for each of the {} layers", letters, layers);
  rules.require(window.kind == WindowKind::token || window.quantum % kernels::attention_block == 0,
                {"window.quantum", "window.kind"},
                "window.quantum = {} must be a multiple of {} for window.kind = \"block\"", window.quantum,
                kernels::attention_block);
}

void check_ranks(Rules& rules, int ranks) {
  const Config& config = rules.config;
  const int sequences = config.train.sequences;
  if (sequences % ranks == 0) return;
  std::vector<int> divisors;
  for (int n = 1; n <= sequences; ++n) {
    if (sequences % n == 0) divisors.push_back(n);
  }
  rules.require(false, {"train.sequences"},
                "train.sequences = {} cannot be divided among {} ranks; rank counts that divide it: {}", sequences,
                ranks, fmt::join(divisors, ", "));
}

void check_data(Rules& rules) {
  const Config& config = rules.config;
  const ValidationConfig& validation = config.validation;
  rules.require(!config.data.train.empty(), {"data.train"}, "data.train names no token shards");
  rules.require(validation.tokens == 0 || !config.data.validation.empty(), {"data.validation", "validation.tokens"},
                "data.validation names no token shards; validation.tokens = 0 trains without validation");
  rules.require(validation.tokens % validation.length == 0, {"validation.tokens", "validation.length"},
                "validation.tokens = {} must be a multiple of validation.length = {}", validation.tokens,
                validation.length);
}

void check_checkpoint(Rules& rules) {
  const CheckpointConfig& checkpoint = rules.config.checkpoint;
  rules.require(checkpoint.weights.empty() || checkpoint.restart == "auto" || checkpoint.restart == "none",
                {"checkpoint.weights", "checkpoint.restart"},
                "checkpoint.weights begins a run, checkpoint.restart = {} continues one: set one of them to a file",
                excerpt(checkpoint.restart));
}

void check_trace(Rules& rules) {
  const Config& config = rules.config;
  if (!config.trace.enabled) return;
  for (const int step : config.trace.json_steps) {
    const bool made =
        rules.require(step < config.train.steps, {"trace.json_steps", "train.steps"},
                      "trace.json_steps names step {}; the steps are 0 to {}", step, config.train.steps - 1);
    if (!made) break;
  }
}

/// What the CUDA implementations of the ops can do.
void check_device(Rules& rules) {
  const Config& config = rules.config;
  if constexpr (computes_in_fp32) return;
  const ModelConfig& model = config.model;
  rules.require(model.head_dim == 128, {"model.head_dim"},
                "model.head_dim = {}: attention on CUDA devices supports 128 only", model.head_dim);
  rules.require(model.width % 64 == 0 && model.width <= 4096, {"model.width"},
                "model.width = {} must be a multiple of 64 up to 4096 on CUDA devices", model.width);
  rules.require(config.head.precision != HeadChoice::fp32, {"head.precision"},
                "head.precision = \"fp32\" is for CPUs; CUDA devices take \"fp8\" or \"bf16\"");
}

}  // namespace

void check_model(const Config& config) {
  Rules rules{config, {}};
  check_layers(rules);
  check_window(rules);
  check_device(rules);
  rules.errors.rethrow(ExitCode::usage, Scope::all_ranks);
}

void check_config(const Config& config, int ranks) {
  Rules rules{config, {}};
  check_layers(rules);
  check_window(rules);
  check_ranks(rules, ranks);
  check_data(rules);
  check_checkpoint(rules);
  check_trace(rules);
  check_device(rules);
  rules.errors.rethrow(ExitCode::usage, Scope::all_ranks);
}

}  // namespace nanorun
