#include "src/run/first_weights.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "src/base/error.hpp"
#include "src/run/checkpoint.hpp"
#include "src/run/final_weights.hpp"
#include "src/run/trained_model.hpp"

namespace nanorun {

namespace {

std::vector<float> read_whole(Comm& alone, const std::string& file, const CheckpointHeader& header,
                              const ParameterTable& table, const char* dataset) {
  const std::vector<Slab<float>> slabs = weight_slabs(table);
  Slab<float> slab = *std::ranges::find(slabs, dataset, &Slab<float>::dataset);
  std::vector<float> values(slab.total_rows * slab.cols);
  slab.data = values;
  read_final_weights(alone, file, header, parse_deck(header.deck, file, {}), table, {slab});
  return values;
}

bool has_tied_lm_head(const Config& config) { return config.model.tied_head && config.train.untie_step >= 0; }

}  // namespace

FirstWeights find_first_weights(Comm& comm, const Config& config, const ParameterTable& table) {
  const std::string& file = config.checkpoint.weights;
  FirstWeights weights{read_checkpoint_header(comm, file), {}};
  std::vector<std::string> changes;
  for (const KeyChange& change : deck_changes(weights.header.deck, config, file)) {
    if (change.key.starts_with("model.")) changes.push_back(change.text);
  }
  weights.difference = fmt::format("{}", fmt::join(changes, "; "));
  if (weights.header.model == model_fingerprint(table.layout())) return weights;
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: the weights of another model, checkpoint.weights needs one of the same shape: {}", file,
                          weights.difference),
              Scope::all_ranks);
}

void require_tied(Comm& comm, const Config& config, std::span<const float> head, std::span<const float> embedding) {
  if (!has_tied_lm_head(config)) return;
  const bool differ = !std::ranges::equal(std::as_bytes(head), std::as_bytes(embedding));
  if (comm.all_reduce(std::uint64_t{differ}, Reduce::max) == 0) return;
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: its embedding is no copy of its head, and the run's first update would make it one "
                          "(model.tied_head); train.untie_step = -1 trains both as they are",
                          config.checkpoint.weights),
              Scope::all_ranks);
}

FirstWeights verify_first_weights(Comm& alone, const Config& config, const ParameterTable& table) {
  const std::string& file = config.checkpoint.weights;
  FirstWeights weights = find_first_weights(alone, config, table);
  read_tensors(alone, file, weights.header, weight_slabs(table));
  if (has_tied_lm_head(config)) {
    const auto values = [&](const char* dataset) { return read_whole(alone, file, weights.header, table, dataset); };
    require_tied(alone, config, values("/weights/head"), values("/weights/embedding"));
  }
  return weights;
}

}  // namespace nanorun
