#include "src/run/batch.hpp"

#include "src/base/error.hpp"
#include "src/config/schedule.hpp"
#include "src/run/agreement.hpp"

namespace nanorun {

std::size_t Batch::rows(const Config& config) const { return tokens.size() / (length_at(config, step) + 1); }

Batch read_batch(RunSetup& run, long step) {
  Batch batch;
  batch.step = step;
  try {
    Region region(*run.trace, Phase::data);
    by_name(run.comm, [&] { batch.tokens = run.loader->next(); });
  } catch (const Error&) {
    batch.failure = std::current_exception();
    return batch;
  }
  batch.after = run.loader->cursor();
  run.learner.rows.read(batch.tokens, length_at(run.config, step));
  batch.first = upload(run, batch, 0);
  return batch;
}

DeviceSequence upload(RunSetup& run, const Batch& batch, std::size_t row) {
  Region region(*run.trace, Phase::data);
  const std::size_t size = length_at(run.config, batch.step) + 1;
  return run.learner.model.upload(*run.trace, Sequence::of(batch.tokens.subspan(row * size, size)),
                                  windows_at(run.config, batch.step));
}

}  // namespace nanorun
