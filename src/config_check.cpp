// Rules of the deck that involve several keys.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <initializer_list>
#include <set>

#include "kernels/attention.hpp"
#include "src/config.hpp"
#include "src/error.hpp"

namespace nanorun {

namespace {

/// The keys of a rule, the likeliest fault first.
using Keys = std::initializer_list<const char*>;

/// "PLACE: " of the first of the keys that was set; empty where all are defaults.
std::string place_of(const Config& config, Keys keys) {
  for (const char* key : keys) {
    const auto at = config.places.find(key);
    if (at != config.places.end()) return at->second + ": ";
  }
  return "";
}

/// Every rank checks the same settings, so all meet the error alike.
template <class... Args>
void require(bool holds, const Config& config, Keys keys, fmt::format_string<Args...> message, Args&&... args) {
  if (holds) return;
  throw Error(ExitCode::usage, place_of(config, keys) + fmt::format(message, std::forward<Args>(args)...),
              Scope::all_ranks);
}

void check_model(const Config& config) {
  const ModelConfig& model = config.model;
  require(model.width == std::int64_t{model.heads} * model.head_dim, config,
          {"model.width", "model.heads", "model.head_dim"},
          "model.width = {} must equal model.heads * model.head_dim = {} * {}", model.width, model.heads,
          model.head_dim);
  std::set<int> without;
  for (const int layer : model.layers_without_attention) {
    require(layer >= 0 && layer < model.layers, config, {"model.layers_without_attention", "model.layers"},
            "model.layers_without_attention names layer {}; layers are 0 to {}", layer, model.layers - 1);
    require(without.insert(layer).second, config, {"model.layers_without_attention"},
            "model.layers_without_attention names layer {} twice", layer);
  }
  require(model.value_path != ValuePath::first || !without.contains(0), config,
          {"model.value_path", "model.layers_without_attention"},
          "model.value_path = \"first\" needs the values of layer 0, which model.layers_without_attention excludes");
  require(model.value_path != ValuePath::embeddings || 2 * std::int64_t{model.value_embeddings} <= model.layers, config,
          {"model.value_embeddings", "model.layers", "model.value_path"},
          "model.value_embeddings = {} must be at most half of model.layers = {}", model.value_embeddings,
          model.layers);
}

void check_window(const Config& config) {
  const WindowConfig& window = config.window;
  const int layers = config.model.layers;
  const auto letters = static_cast<int>(window.layers.size());
  require(letters == 1 || letters == layers, config, {"window.layers", "model.layers"},
          "window.layers has {} letters; one, or one for each of the {} layers", letters, layers);
  require(window.kind == WindowKind::token || window.quantum % kernels::attention_block == 0, config,
          {"window.quantum", "window.kind"}, "window.quantum = {} must be a multiple of {} for window.kind = \"block\"",
          window.quantum, kernels::attention_block);
}

void check_ranks(const Config& config, int ranks) {
  const int sequences = config.train.sequences;
  if (sequences % ranks == 0) return;
  std::vector<int> divisors;
  for (int n = 1; n <= sequences; ++n) {
    if (sequences % n == 0) divisors.push_back(n);
  }
  require(false, config, {"train.sequences"},
          "train.sequences = {} cannot be shared by {} ranks; rank counts that divide it: {}", sequences, ranks,
          fmt::join(divisors, ", "));
}

void check_data(const Config& config) {
  const ValidationConfig& validation = config.validation;
  require(!config.data.train.empty(), config, {"data.train"}, "data.train names no token shards");
  require(validation.tokens == 0 || !config.data.validation.empty(), config, {"data.validation", "validation.tokens"},
          "data.validation names no token shards; validation.tokens = 0 trains without validation");
  require(validation.tokens % validation.length == 0, config, {"validation.tokens", "validation.length"},
          "validation.tokens = {} must be a multiple of validation.length = {}", validation.tokens, validation.length);
}

void check_trace(const Config& config) {
  if (!config.trace.enabled) return;
  for (const int step : config.trace.json_steps) {
    require(step < config.train.steps, config, {"trace.json_steps", "train.steps"},
            "trace.json_steps names step {}; the steps are 0 to {}", step, config.train.steps - 1);
  }
}

/// What the CUDA bodies of the ops can do.
void check_device(const Config& config) {
  if constexpr (computes_in_fp32) return;
  const ModelConfig& model = config.model;
  require(model.head_dim == 128, config, {"model.head_dim"},
          "model.head_dim = {}: attention on CUDA devices takes heads of 128", model.head_dim);
  require(model.width % 64 == 0 && model.width <= 4096, config, {"model.width"},
          "model.width = {} must be a multiple of 64 up to 4096 on CUDA devices", model.width);
  require(config.head.precision != HeadChoice::fp32, config, {"head.precision"},
          "head.precision = \"fp32\" is for hosts; CUDA devices take \"fp8\" or \"bf16\"");
}

}  // namespace

void check_config(const Config& config, int ranks) {
  check_model(config);
  check_window(config);
  check_ranks(config, ranks);
  check_data(config);
  check_trace(config);
  check_device(config);
}

}  // namespace nanorun
