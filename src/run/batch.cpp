#include "src/run/batch.hpp"

#include "src/base/error.hpp"
#include "src/config/schedule.hpp"
#include "src/run/agreement.hpp"

namespace nanorun {

std::size_t Batch::rows(const Config& config) const { return tokens.size() / (length_at(config, step) + 1); }

namespace {

/// Number of a row of the batch among the sequences of the step.
int sequence_of(const RunSetup& run, std::size_t row) {
  return run.comm.rank() * (run.config.train.sequences / run.comm.size()) + static_cast<int>(row);
}

std::span<const Token> row_of(const RunSetup& run, const Batch& batch, std::size_t row) {
  const std::size_t size = length_at(run.config, batch.step) + 1;
  return batch.tokens.subspan(row * size, size);
}

/// Requires that the candidates of the LM head have room for all targets of each sequence.
void require_candidates(const RunSetup& run, const Batch& batch) {
  const int count = candidate_draw(run.config, batch.step, 0).count;
  if (count == 0) return;
  for (std::size_t row = 0; row < batch.rows(run.config); ++row) {
    const int distinct = distinct_tokens(Sequence::of(row_of(run, batch, row)).targets);
    if (distinct <= count) continue;
    throw Error(ExitCode::usage, fmt::format("a sequence of step {} has {} different targets, more than "
                                             "stage.{}.candidates = {}; raise that key",
                                             batch.step + 1, distinct, stage_of(run.config, batch.step), count));
  }
}

}  // namespace

Batch read_batch(RunSetup& run, long step) {
  Batch batch;
  batch.step = step;
  try {
    Region region(*run.trace, Phase::data);
    by_name(run.comm, [&] {
      batch.tokens = run.loader->next();
      require_candidates(run, batch);
    });
  } catch (const Error&) {
    batch.failure = std::current_exception();
    return batch;
  }
  batch.after = run.loader->cursor();
  run.learner.rows.read(batch.tokens, step);
  batch.first = upload(run, batch, 0);
  return batch;
}

DeviceSequence upload(RunSetup& run, const Batch& batch, std::size_t row) {
  Region region(*run.trace, Phase::data);
  return run.learner.model.upload(*run.trace, Sequence::of(row_of(run, batch, row)), windows_at(run.config, batch.step),
                                  candidate_draw(run.config, batch.step, sequence_of(run, row)));
}

}  // namespace nanorun
