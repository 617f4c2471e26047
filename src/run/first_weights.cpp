#include "src/run/first_weights.hpp"

#include <fmt/ranges.h>

#include <vector>

#include "src/base/error.hpp"
#include "src/run/checkpoint.hpp"
#include "src/run/final_weights.hpp"
#include "src/run/tied_start.hpp"
#include "src/run/trained_model.hpp"

namespace nanorun {

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

FirstWeights verify_first_weights(Comm& alone, const Config& config, const ParameterTable& table) {
  const std::string& file = config.checkpoint.weights;
  FirstWeights weights = find_first_weights(alone, config, table);
  read_tensors(alone, file, weights.header, weight_slabs(table));
  const Config trained = parse_deck(weights.header.deck, file, {});
  verify_tied(alone, config, table, file, 0, [&](const Slab<float>& slab) {
    read_final_weights(alone, file, weights.header, trained, table, {slab});
  });
  return weights;
}

}  // namespace nanorun
