#pragma once
// What the fuzz targets of checkpoints share.

#include <string>

#include "src/run/checkpoint.hpp"
#include "src/run/learner.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace nanorun::fuzz {

/// Whether the learner takes the checkpoint. What it takes must verify, too.
inline bool restores(Learner<float>& learner, const std::string& path) {
  CheckpointConfig config;
  config.restart = path;
  const bool verified = accepts([&] { verify_checkpoint(comm(), path); });
  const bool restored = accepts([&] {
    Checkpoints(comm(), config, "", to_toml(learner.config), model_fingerprint(learner.table.layout()))
        .restore(learner.optimizer.slabs());
  });
  require(verified || !restored, "a checkpoint was restored that does not verify");
  return restored;
}

}  // namespace nanorun::fuzz
