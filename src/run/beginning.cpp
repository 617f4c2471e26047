#include "src/run/beginning.hpp"

#include "src/base/error.hpp"
#include "src/data/token_origin.hpp"
#include "src/optimizer/stored_tensors.hpp"
#include "src/run/checkpoint.hpp"
#include "src/run/earlier_run.hpp"
#include "src/run/first_weights.hpp"

namespace nanorun {

namespace {

void plan_continuation(const Checkpoints& checkpoints, const Config& config, Beginning& beginning) {
  require_steps_ahead(checkpoints, config);
  const std::string& file = checkpoints.restored_file();
  const CheckpointHeader& header = checkpoints.restored();
  beginning.data = {origin_of(header.tokenizer, file, config.model.vocabulary), header.shards, header.progress.cursor,
                    header.progress.step};
  beginning.lines.push_back(fmt::format("continues from the checkpoint {}, step {}", file, header.progress.step));
}

void plan_first_weights(Comm& alone, const Config& config, const ParameterTable& table, Beginning& beginning) {
  const std::string& file = config.checkpoint.weights;
  const auto [header, difference] = verify_first_weights(alone, config, table);
  beginning.data.model = origin_of(header.tokenizer, file, config.model.vocabulary);
  beginning.lines.push_back(fmt::format("begins with the weights of {}, step {}", file, header.progress.step));
  if (!difference.empty()) beginning.lines.push_back("warning: the model of these weights differs: " + difference);
}

void plan(const Config& config, const ParameterTable& table, Beginning& beginning) {
  Comm alone(MPI_COMM_SELF);
  const std::string directory = config.run.outputs + "/" + config.run.name;
  Checkpoints checkpoints(alone, config.checkpoint, directory + "/checkpoints", to_toml(config),
                          model_fingerprint(table.layout()));
  const std::optional<Progress> found = checkpoints.plan_restore(stored_slabs(config, table));
  const bool automatic = config.checkpoint.restart == "auto";
  if (automatic && examine_earlier_run(directory, config, checkpoints, found) == Earlier::complete) {
    beginning.lines.push_back(fmt::format("the run is finished: all {} steps are made", config.train.steps));
  } else if (found) {
    plan_continuation(checkpoints, config, beginning);
  } else if (!config.checkpoint.weights.empty()) {
    plan_first_weights(alone, config, table, beginning);
  }
}

}  // namespace

Beginning plan_beginning(const Config& config, const ParameterTable& table) {
  Beginning beginning;
  try {
    plan(config, table, beginning);
  } catch (const Error& error) {
    beginning.lines.push_back(fmt::format("warning: {}", error.what()));
  }
  return beginning;
}

}  // namespace nanorun
