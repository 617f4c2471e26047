#include "src/run/run_setup.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "src/base/files.hpp"
#include "src/config/schedule.hpp"
#include "src/data/token_origin.hpp"
#include "src/model/fp8_rules.hpp"
#include "src/optimizer/stored_tensors.hpp"
#include "src/run/deck_mark.hpp"
#include "src/run/earlier_run.hpp"
#include "src/run/final_weights.hpp"
#include "src/run/first_weights.hpp"
#include "src/run/log_lines.hpp"
#include "src/run/tied_start.hpp"

namespace nanorun {

namespace {

/// Whether gradients of the checkpoint still wait for an update. Files below version 4 do not say it: there they do
/// within a period of their deck, or of this run's where that cannot be read.
bool gradients_wait(const CheckpointHeader& header, const Config& config, const ParameterTable& table) {
  if (header.version > 3) return header.progress.gradients_wait;
  int period = common_period(config, table);
  quietly([&] { period = common_period(parse_deck(header.deck, "", {}), table); });
  return header.progress.step % period != 0;
}

/// Averages that should have samples by now, but have had none in the steps of the checkpoint, by its deck.
std::vector<bool> averages_to_begin(const CheckpointHeader& header, const Config& config) {
  Config before;
  quietly([&] { before = parse_deck(header.deck, "", {}); });
  const long step = header.progress.step;
  std::vector<bool> begin;
  for (std::size_t row = 0; row < config.average.size(); ++row) {
    const bool begun = row < before.average.size() && average_begun(before, before.average[row], step);
    begin.push_back(!begun && average_begun(config, config.average[row], step));
  }
  return begin;
}

}  // namespace

RunSetup::RunSetup(Context& context_, const Config& config_)
    : context(context_),
      comm(context.comm()),
      config(config_),
      data(open_run_data(comm, config)),
      directory(comm, config),
      log(comm.root()),
      metrics(comm.root()),
      learner(config, comm, data.end_of_text(), {context.stream(), context.comm_stream(), context.upload_stream()}),
      checkpoints(comm, config.checkpoint, directory.checkpoints(), to_toml(config),
                  model_fingerprint(learner.table.layout())),
      stop(config.stop, comm.root() ? directory.stop_file() : "") {
  introduce();
  restore();
  const std::string provenance_attribute = provenance_json(provenance, max_provenance_attribute);
  checkpoints.set_provenance(provenance_attribute);
  if (!complete) check_data();
  directory.require_free(config, {.here = continues_here, .complete = complete}, progress.step);
  if (!complete) {
    check_outputs();
    take_over_directory();
    write_deck();
    trace = std::make_unique<Trace>(comm, context.stream(), config.trace, learner.tensor_comm.layout(),
                                    directory.path(), progress.step, provenance_attribute);
  }
  comm.together([&] {
    if (!comm.root()) return;
    if (!complete) metrics.open(directory.file("metrics.jsonl"), progress.step, training_mark(to_toml(config)));
    log.open(directory.file("log.txt"));
  });
  comm.set_log(directory.file("log.txt"));
}

RunSummary RunSetup::summary() const {
  RunSummary summary;
  summary.first_step = progress.step;
  summary.ranks = comm.size();
  summary.train_data = sum_of(data.train.opened);
  summary.validation_data = sum_of(data.validation.opened);
  summary.provenance = provenance;
  return summary;
}

void RunSetup::keep_directory() {
  if (directory.keep()) directory.write("deck.toml", to_toml(config));
}

void RunSetup::introduce() {
  if (comm.root()) provenance = nanorun::provenance(context);
  provenance.reproducible = config.run.reproducible;
  provenance.fp8 = fp8_kernels(config, context.device());
  const LogHead head{.provenance = provenance,
                     .table = learner.table,
                     .ranks = comm.size(),
                     .output = directory.path(),
                     .device = ops::device_name(context.device()),
                     .transport = learner.tensor_comm.transport(),
                     .transport_notes = learner.tensor_comm.notes(),
                     .device_note = context.device_note(),
                     .kernels = ops::device_kernels(context.device())};
  for (const std::string& line : opening_lines(config, head)) log.line(line);
  if (const std::string line = stop.taken_signal(); !line.empty()) log.line(line);
}

/// Fills the weights and the optimizer's state, from a checkpoint where the deck and the directory say so, and finds
/// out whether anything is left to do. Nothing on disk is changed yet.
void RunSetup::restore() {
  const std::optional<Progress> found = checkpoints.restore(learner.optimizer.slabs_to_fill());
  examine_earlier(found);
  if (!complete) warm_up();
  if (found) {
    go_on_from(*found);
  } else {
    learner.optimizer.initialise(config.run.seed);
    if (!complete && !config.checkpoint.weights.empty()) begin_with(config.checkpoint.weights);
  }
}

/// On GPUs the first call of each shape takes longer; after this no step waits for that. What a checkpoint holds was
/// read into host memory and is not on the device yet.
void RunSetup::warm_up() {
#if NANORUN_CUDA
  const double begin = context.seconds_since_start();
  {
    const auto work = comm.watch_work();
    Trace untimed = untraced(comm, context.stream());
    learner.warm_up(untimed);
  }
  log.line(fmt::format("kernels loaded and algorithms chosen for all stages in {:.2f} s",
                       context.seconds_since_start() - begin));
#endif
}

void RunSetup::examine_earlier(const std::optional<Progress>& found) {
  comm.together([&] {
    if (!comm.root()) return;
    const Continuation continuation = examine_earlier_run(directory.path(), config, checkpoints, found);
    if (continuation.again) log.line("no checkpoint of this run is there: it begins again at step 1");
    continues_here = continuation.here;
    complete = continuation.complete;
  });
  continues_here = comm.all_reduce(std::uint64_t{continues_here}, Reduce::max) != 0;
  complete = comm.all_reduce(std::uint64_t{complete}, Reduce::max) != 0;
}

void RunSetup::go_on_from(const Progress& found) {
  progress = found;
  const std::vector<Slab<float>> slabs = learner.optimizer.slabs_to_fill();
  require_tied(comm, config, checkpoints.restored_file(), progress.step, slabs);
  const bool parts = parts_lm_head(checkpoints.restored(), config);
  if (parts) hand_over_state(slabs);
  learner.optimizer.restore({.gradients_wait = gradients_wait(checkpoints.restored(), config, learner.table),
                             .late_sums_wait = true,
                             .averages = averages_to_begin(checkpoints.restored(), config)});
  auto& scales = learner.model.fp8_scales();
  const bool two_rows = progress.fp8_maxima.empty();
  if (!scales.restore(progress.step, two_rows ? scales.state_of(progress.mlp_maxima) : progress.fp8_maxima)) {
    throw Error(ExitCode::checkpoint,
                fmt::format("{}: /{}_maxima is not of {} layers; the file is damaged", checkpoints.restored_file(),
                            two_rows ? "mlp" : "fp8", config.model.layers),
                Scope::all_ranks);
  }
  log.line(fmt::format("restarted from the checkpoint of step {}", progress.step));
  for (const std::string& line : changes_since(checkpoints, config)) log.line(line);
  if (parts) log.line("LM head and embedding part here, and the embedding goes on with the LM head's state");
  require_steps_ahead(checkpoints, config);
}

/// Takes the weights of another training's checkpoint; the optimizer's state stays that of a new run.
void RunSetup::begin_with(const std::string& file) {
  const auto [header, difference] = find_first_weights(comm, config, learner.table);
  compare_tokens(header, file);
  std::vector<Slab<float>> weights, outer;
  for (Slab<float>& slab : learner.optimizer.slabs()) {
    if (slab.dataset.starts_with(outer_weights)) outer.push_back(slab);
    if (slab.dataset.starts_with("/weights/")) weights.push_back(std::move(slab));
  }
  read_final_weights(comm, file, header, parse_deck(header.deck, file, {}), learner.table, weights);
  require_tied(comm, config, file, 0, weights);
  for (const Slab<float>& slab : outer) {
    const std::string dataset = "/weights/" + name_of(slab.dataset);
    std::ranges::copy(std::ranges::find(weights, dataset, &Slab<float>::dataset)->data, slab.data.begin());
  }
  learner.optimizer.restore();
  log.line(fmt::format("begins with the weights of {}, step {}", file, header.progress.step));
  if (!difference.empty()) log.line("warning: the model of these weights differs: " + difference);
}

/// Requires that the shards are those of the checkpoint and last for all steps; reads the prefix targets.
void RunSetup::check_data() {
  for (const std::string& line : check_shards(comm, data, config, checkpoints.restored().shards)) log.line(line);
  if (!checkpoints.restored_file().empty()) compare_tokens(checkpoints.restored(), checkpoints.restored_file());
  for (const std::string& line : document_lines(comm, config, data, progress.cursor, progress.step)) log.line(line);
  loader = start_loader(comm, config, data, progress.cursor, progress.step, config.train.steps);
  for (const std::string& line : shard_warnings(data)) log.line(line);
  const std::vector<std::int32_t> prefixes = training_prefixes(comm, config, data);
  if (!prefixes.empty()) learner.model.set_prefixes(prefixes);
  TokenizerRecord tokenizer = training_tokenizer(comm, data);
  if (tokenizer.name.empty() && !trained_before.name.empty()) {
    tokenizer.name = trained_before.name;
    tokenizer.checksum = trained_before.checksum;
  }
  checkpoints.set_shards(shard_record(data), tokenizer);
}

/// Compares the tokenizers of the shards and of a checkpoint's model. Shards that record none, if nothing speaks
/// against it, count as encoded by the model's tokenizer from here on.
void RunSetup::compare_tokens(const CheckpointHeader& header, const std::string& file) {
  const std::string warning =
      nanorun::compare_tokens(config, data, origin_of(header.tokenizer, file, config.model.vocabulary));
  if (warning.empty()) {
    trained_before = header.tokenizer;
  } else {
    log.line(warning);
  }
}

void RunSetup::check_outputs() {
  checkpoints.probe({.after = progress.step, .last = config.train.steps, .directory_stays = continues_here},
                    learner.optimizer.slabs_to_fill());
  if (config.stop.walltime_seconds == 0) return;
  const double begin = context.seconds_since_start();
  const std::vector<Slab<float>> slabs = learner.optimizer.slabs();
  const double copying = context.seconds_since_start() - begin;
  checkpoint_seconds = copying + checkpoints.foretell_seconds(slabs);
}

/// The first change to what an earlier run has left.
void RunSetup::take_over_directory() {
  const auto start = continues_here ? RunDirectory::Start::resumed : RunDirectory::Start::anew;
  for (const std::string& line : directory.begin(config, start, context.seconds_since_start())) log.line(line);
  comm.together([&] {
    if (!comm.root()) return;
    for (const std::string& line : checkpoints.set_newer_aside(progress.step)) log.line(line);
  });
  comm.share_heartbeats(directory.heartbeats());
}

/// A run that has no steps left keeps the deck of the steps that were made.
void RunSetup::write_deck() {
  const bool finished = progress.step == config.train.steps;
  comm.together([&] {
    if (!comm.root()) return;
    if (!finished || !directory.read("deck.toml")) directory.write("deck.toml", to_toml(config));
    const std::optional<std::string> summary = directory.read("summary.json");
    if (summary && finished_steps(*summary) > 0) set_aside(directory.file("summary.json"), ExitCode::output);
  });
}

}  // namespace nanorun
