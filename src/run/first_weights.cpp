#include "src/run/first_weights.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "src/base/error.hpp"
#include "src/run/checkpoint.hpp"
#include "src/run/trained_model.hpp"

namespace nanorun {

namespace {

std::vector<float> read_whole(Comm& alone, const std::string& file, const CheckpointHeader& header,
                              const ParameterTable& table, const char* dataset) {
  const std::vector<Slab<float>> slabs = weight_slabs(table);
  Slab<float> slab = *std::ranges::find(slabs, dataset, &Slab<float>::dataset);
  std::vector<float> values(slab.total_rows * slab.cols);
  slab.data = values;
  read_tensors(alone, file, header, {slab});
  return values;
}

bool has_tied_head(const Config& config) { return config.model.tied_head && config.train.untie_step >= 0; }

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
  if (!has_tied_head(config)) return;
  const bool differ = !std::ranges::equal(std::as_bytes(head), std::as_bytes(embedding));
  if (comm.all_reduce(std::uint64_t{differ}, Reduce::max) == 0) return;
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: its embedding is no copy of its head, and the run's first update would make it one "
                          "(model.tied_head); train.untie_step = -1 trains both as they are",
                          config.checkpoint.weights),
              Scope::all_ranks);
}

namespace {

/// The checkpoint that checkpoint.restart names; with "auto" the newest in the run's directory. Empty: none.
std::string file_to_continue(Comm& alone, const Config& config) {
  const std::string& restart = config.checkpoint.restart;
  if (restart == "none") return {};
  if (restart != "auto") return restart;
  const std::string directory = config.run.outputs + "/" + config.run.name + "/checkpoints";
  const std::vector<std::string> files = Checkpoints(alone, config.checkpoint, directory, "", "").list();
  return files.empty() ? std::string() : files.back();
}

void plan_continuation(Comm& alone, const Config& config, const ParameterTable& table, const std::string& file,
                       Beginning& beginning) {
  const CheckpointHeader header = read_checkpoint_header(alone, file);
  if (header.model != model_fingerprint(table.layout()))
    throw Error(ExitCode::checkpoint, fmt::format("{}: belongs to another model than that of the deck", file));
  beginning.model = origin_of(header.tokenizer, file, config.model.vocabulary);
  verify_checkpoint(alone, file);
  beginning.lines.push_back(fmt::format("continues from the checkpoint {}, step {}", file, header.progress.step));
}

void plan_first_weights(Comm& alone, const Config& config, const ParameterTable& table, Beginning& beginning) {
  const std::string& file = config.checkpoint.weights;
  const auto [header, difference] = find_first_weights(alone, config, table);
  beginning.model = origin_of(header.tokenizer, file, config.model.vocabulary);
  read_tensors(alone, file, header, weight_slabs(table));
  if (has_tied_head(config)) {
    const auto values = [&, &header = header](const char* dataset) {
      return read_whole(alone, file, header, table, dataset);
    };
    require_tied(alone, config, values("/weights/head"), values("/weights/embedding"));
  }
  beginning.lines.push_back(fmt::format("begins with the weights of {}, step {}", file, header.progress.step));
  if (!difference.empty()) beginning.lines.push_back("warning: the model of these weights differs: " + difference);
}

}  // namespace

Beginning plan_beginning(const Config& config, const ParameterTable& table) {
  Beginning beginning;
  try {
    Comm alone(MPI_COMM_SELF);
    if (const std::string file = file_to_continue(alone, config); !file.empty()) {
      plan_continuation(alone, config, table, file, beginning);
    } else if (!config.checkpoint.weights.empty()) {
      plan_first_weights(alone, config, table, beginning);
    }
  } catch (const Error& error) {
    beginning.lines.push_back(fmt::format("warning: {}", error.what()));
  }
  return beginning;
}

}  // namespace nanorun
