#include "src/run/dry_run_start.hpp"

#include "src/base/error.hpp"
#include "src/data/token_origin.hpp"
#include "src/optimizer/stored_tensors.hpp"
#include "src/run/checkpoint.hpp"
#include "src/run/earlier_run.hpp"
#include "src/run/first_weights.hpp"
#include "src/run/run_paths.hpp"
#include "src/run/tied_start.hpp"

namespace nanorun {

namespace {

void describe_checkpoint(Comm& alone, const Checkpoints& checkpoints, const Config& config, const ParameterTable& table,
                         DryRunStart& start) {
  const std::string& file = checkpoints.restored_file();
  const CheckpointHeader& header = checkpoints.restored();
  verify_tied(alone, config, table, file, header.progress.step,
              [&](const Slab<float>& slab) { read_tensors(alone, file, header, {slab}); });
  require_steps_ahead(checkpoints, config);
  start.data = {origin_of(header.tokenizer, file, config.model.vocabulary), header.shards, header.progress.cursor,
                header.progress.step};
  start.lines.push_back(fmt::format("continues from the checkpoint {}, step {}", file, header.progress.step));
}

void describe_first_weights(Comm& alone, const Config& config, const ParameterTable& table, DryRunStart& start) {
  const std::string& file = config.checkpoint.weights;
  const auto [header, difference] = verify_first_weights(alone, config, table);
  start.data.model = origin_of(header.tokenizer, file, config.model.vocabulary);
  start.lines.push_back(fmt::format("begins with the weights of {}, step {}", file, header.progress.step));
  if (!difference.empty()) start.lines.push_back("warning: the model of these weights differs: " + difference);
}

/// What the run would go on from. Throws as the run would.
Continuation plan_continuation(Comm& alone, const Config& config, const ParameterTable& table, Checkpoints& checkpoints,
                               DryRunStart& start) {
  const std::optional<Progress> found = checkpoints.plan_restore(stored_slabs(config, table));
  const Continuation continuation = examine_earlier_run(RunPaths(config).path(), config, checkpoints, found);
  if (continuation.complete) {
    start.lines.push_back(fmt::format("the run is finished: all {} steps are made", config.train.steps));
  } else if (found) {
    describe_checkpoint(alone, checkpoints, config, table, start);
  } else if (!config.checkpoint.weights.empty()) {
    describe_first_weights(alone, config, table, start);
  }
  return continuation;
}

/// Makes a look of the run's start. Returns false, and adds a warning, where that throws, unless with the code of a
/// refusal.
template <class Look>
bool passes_or_warns(DryRunStart& start, Look&& look, std::optional<ExitCode> refusal = {}) {
  try {
    look();
    return true;
  } catch (const Error& error) {
    if (error.code() == refusal) throw;
    start.lines.push_back(fmt::format("warning: {}", error.what()));
    return false;
  }
}

/// What the run would keep under other names, and what it would miss.
void describe_files(const RunPaths& paths, const Config& config, const Continuation& continuation, long first_step,
                    DryRunStart& start) {
  if (paths.is_set_aside(continuation)) {
    start.lines.push_back("an earlier run of this name is kept as " + free_name(paths.path(), ExitCode::output));
    return;
  }
  for (const std::string& line : paths.warnings(config, continuation, first_step))
    start.lines.push_back("warning: " + line);
}

/// Takes the looks of the run's start, in its order. Throws what stands in the way in the run's directory.
void plan(const Config& config, int ranks, const ParameterTable& table, DryRunStart& start) {
  Comm alone(MPI_COMM_SELF);
  RunPaths paths(config);
  Checkpoints checkpoints(alone, config.checkpoint, paths.checkpoints(), to_toml(config),
                          model_fingerprint(table.layout()));
  paths.require_usable();
  const bool unlocked = passes_or_warns(start, [&] { paths.require_unlocked(); });
  checkpoints.require_usable_directory();
  Continuation continuation;
  const auto look_for_earlier = [&] { continuation = plan_continuation(alone, config, table, checkpoints, start); };
  if (!passes_or_warns(start, look_for_earlier, ExitCode::output)) return;
  if (!continuation.complete) paths.require_free_stop_file();
  const long first_step = checkpoints.restored().progress.step;
  paths.require_free_files(config, ranks, continuation, first_step);
  if (unlocked) describe_files(paths, config, continuation, first_step, start);
  if (continuation.complete) return;
  const DueCheckpoints due{.after = first_step, .last = config.train.steps, .directory_stays = continuation.here};
  checkpoints.require_free_names(due);
  if (unlocked) {
    for (const std::string& line : checkpoints.warnings(due)) start.lines.push_back("warning: " + line);
  }
  passes_or_warns(start, [&] { checkpoints.require_space(due, stored_slabs(config, table)); });
}

}  // namespace

DryRunStart plan_start(const Config& config, int ranks, const ParameterTable& table) {
  DryRunStart start;
  try {
    plan(config, ranks, table, start);
  } catch (const Error& error) {
    start.refusal = error;
  }
  return start;
}

}  // namespace nanorun
