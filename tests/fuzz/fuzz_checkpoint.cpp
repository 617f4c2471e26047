// The reader of checkpoints: verified as any model's, and restored as the small model's.

#include "src/checkpoint.hpp"
#include "src/optimizer.hpp"
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
  return config;
}

/// A model's weights and state, and what restores them.
struct Target {
  Config config = small_model();
  ParameterTable table{config.model};
  TensorComm comm{fuzz::comm(), {}};
  Weights<float> weights{table};
  TensorArena<float> gradients{table.size()};
  Optimizer<float> optimizer{config, table, weights, gradients.span(), comm, {}};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Target target;
  const fuzz::InputFile file({data, size});
  CheckpointConfig config;
  config.restart = file.path();
  const bool verified = fuzz::accepts([&] { verify_checkpoint(fuzz::comm(), file.path()); });
  const bool restored = fuzz::accepts([&] {
    Checkpoints(fuzz::comm(), config, "", to_toml(target.config), model_fingerprint(target.table.layout()))
        .restore(target.optimizer.slabs());
  });
  fuzz::require(verified || !restored, "a checkpoint was restored that does not verify");
  return 0;
}
