// The reader of checkpoints: verified as any model's, and restored as the small model's.

#include "src/checkpoint.hpp"
#include "src/learner.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/small_model.hpp"

using namespace nanorun;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Learner<float> learner(fuzz::small_model(2), fuzz::comm(), 0, {});
  const fuzz::InputFile file({data, size});
  CheckpointConfig config;
  config.restart = file.path();
  const bool verified = fuzz::accepts([&] { verify_checkpoint(fuzz::comm(), file.path()); });
  const bool restored = fuzz::accepts([&] {
    Checkpoints(fuzz::comm(), config, "", to_toml(learner.config), model_fingerprint(learner.table.layout()))
        .restore(learner.optimizer.slabs());
  });
  fuzz::require(verified || !restored, "a checkpoint was restored that does not verify");
  return 0;
}
