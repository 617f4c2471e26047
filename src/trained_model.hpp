#pragma once
// A model with the weights of a checkpoint: no gradients, no optimizer.

#include <string>

#include "src/checkpoint_file.hpp"
#include "src/comm.hpp"
#include "src/config.hpp"
#include "src/learner.hpp"
#include "src/model.hpp"
#include "src/params.hpp"

namespace nanorun {

/// The deck that a checkpoint was written with, for a model that is no longer trained: the head in working precision.
/// Throws Error(usage) where this build cannot compute the model, or where the deck is no deck of this program.
Config trained_config(const CheckpointHeader& header, const std::string& path,
                      const std::vector<std::string>& overrides = {});

/// Tokens of the long layers' window at the checkpoint's step.
int trained_window(const Config& config, const CheckpointHeader& header);

/// The tensors /weights/<name> of the table, whole and without memory.
std::vector<Slab<float>> weight_slabs(const ParameterTable& table);

/// Throws Error(checkpoint) where the checkpoint's fingerprint is not that of the model which its deck describes.
void require_own_model(const CheckpointHeader& header, const ParameterTable& table, const std::string& path);

struct TrainedModel {
  /// Collective. Every rank reads all weights and verifies their checksums. `config` is trained_config() of the
  /// checkpoint, and outlives the model. Throws Error(checkpoint), Error(internal) where memory is short.
  TrainedModel(Comm& comm, const std::string& path, const CheckpointHeader& header, const Config& config,
               kernels::Token end_of_text, const Streams& streams);

  ParameterTable table;
  Weights<Real> weights;
  Model<Real> model;
};

}  // namespace nanorun
