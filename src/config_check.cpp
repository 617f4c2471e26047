// Rules of the deck that involve several keys.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "kernels/attention.hpp"
#include "src/config.hpp"
#include "src/error.hpp"

namespace nanorun {

namespace {

/// Every rank checks the same settings, so all meet the error alike.
template <class... Args>
void require(bool holds, fmt::format_string<Args...> message, Args&&... args) {
  if (!holds) throw Error(ExitCode::usage, fmt::format(message, std::forward<Args>(args)...), Scope::all_ranks);
}

void check_model(const ModelConfig& model) {
  require(model.width == std::int64_t{model.heads} * model.head_dim,
          "model.width = {} must equal model.heads * model.head_dim = {} * {}", model.width, model.heads,
          model.head_dim);
  std::set<int> without;
  for (const int layer : model.layers_without_attention) {
    require(layer >= 0 && layer < model.layers, "model.layers_without_attention names layer {}; layers are 0 to {}",
            layer, model.layers - 1);
    require(without.insert(layer).second, "model.layers_without_attention names layer {} twice", layer);
  }
  require(model.value_path != ValuePath::first || !without.contains(0),
          "model.value_path = \"first\" needs the values of layer 0, which model.layers_without_attention excludes");
  require(model.value_path != ValuePath::embeddings || 2 * std::int64_t{model.value_embeddings} <= model.layers,
          "model.value_embeddings = {} must be at most half of model.layers = {}", model.value_embeddings,
          model.layers);
}

void check_window(const WindowConfig& window, int layers) {
  const auto letters = static_cast<int>(window.layers.size());
  require(letters == 1 || letters == layers, "window.layers has {} letters; one, or one for each of the {} layers",
          letters, layers);
  require(window.kind == WindowKind::token || window.quantum % kernels::attention_block == 0,
          "window.quantum = {} must be a multiple of {} for window.kind = \"block\"", window.quantum,
          kernels::attention_block);
}

void check_ranks(int sequences, int ranks) {
  if (sequences % ranks == 0) return;
  std::vector<int> divisors;
  for (int n = 1; n <= sequences; ++n) {
    if (sequences % n == 0) divisors.push_back(n);
  }
  require(false, "train.sequences = {} cannot be shared by {} ranks; rank counts that divide it: {}", sequences, ranks,
          fmt::join(divisors, ", "));
}

void check_validation(const Config& config) {
  const ValidationConfig& validation = config.validation;
  require(validation.tokens == 0 || !config.data.validation.empty(),
          "data.validation names no token shards; validation.tokens = 0 trains without validation");
  require(validation.tokens % validation.length == 0,
          "validation.tokens = {} must be a multiple of validation.length = {}", validation.tokens, validation.length);
}

}  // namespace

void check_config(const Config& config, int ranks) {
  check_model(config.model);
  check_window(config.window, config.model.layers);
  check_ranks(config.train.sequences, ranks);
  require(!config.data.train.empty(), "data.train names no token shards");
  check_validation(config);
}

int padded_vocabulary(const ModelConfig& model) { return (model.vocabulary + 127) / 128 * 128; }

}  // namespace nanorun
