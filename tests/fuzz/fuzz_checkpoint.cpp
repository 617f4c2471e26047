// The reader of checkpoints: verified as any model's, and restored as the small model's.

#include "src/checkpoint.hpp"
#include "src/learner.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace nanorun;

namespace {

Config small_model() {
  Config config;
  config.model.vocabulary = 2;
  config.model.width = 4;
  config.model.heads = 1;
  config.model.head_dim = 4;
  config.model.layers = 2;
  config.model.mlp_ratio = 1;
  config.model.value_path = ValuePath::none;
  config.train.length = config.validation.length = 128;
  return config;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Learner<float> learner(small_model(), fuzz::comm(), 0, {});
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
