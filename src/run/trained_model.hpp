#pragma once
// The model of a checkpoint, without gradients and optimizer.

#include <optional>
#include <string>
#include <vector>

#include "src/base/slab.hpp"
#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"
#include "src/run/checkpoint_file.hpp"

namespace nanorun {

/// The deck that a checkpoint was written with, for a model that is no longer trained: the head in working precision.
/// Throws Error(usage) where this build cannot compute the model, or where the deck is no deck of this program.
Config trained_config(const CheckpointHeader& header, const std::string& path,
                      const std::vector<std::string>& overrides = {});

/// The token that begins documents: `given`, or what the vocabulary of text as bytes or of GPT-2 says. Throws
/// Error(usage) where none is given and the vocabulary is another, or the given one is not in it.
kernels::Token end_of_text_of(const std::string& checkpoint, const Config& config, std::optional<int> given);

/// The tensors /weights/<name> of the table, whole and without memory.
std::vector<Slab<float>> weight_slabs(const ParameterTable& table);

/// Throws Error(checkpoint) where the checkpoint's fingerprint is not that of the model which its deck describes.
void require_own_model(const CheckpointHeader& header, const ParameterTable& table, const std::string& path);

/// Throws Error(data) where the checkpoint of `path` records another tokenizer than this one, of the file `table`, or
/// where its model has fewer tokens. Where the checkpoint records none, prints a warning if `warns` and the vocabulary
/// or the end-of-text token of its training is another.
void require_own_tokenizer(const CheckpointHeader& header, const Config& config, const std::string& path,
                           const Tokenizer& tokenizer, const std::string& table, bool warns = true);

/// What a model is built from (src/model/model.hpp) that only validates or continues text.
struct TrainedWeights {
  /// Collective. Every rank reads all weights and verifies their checksums. `config`: trained_config() of the
  /// checkpoint. Throws Error(checkpoint), Error(internal) where memory is short.
  TrainedWeights(Comm& comm, const std::string& path, const CheckpointHeader& header, const Config& config,
                 kernels::Stream stream);

  ParameterTable table;
  Weights<Real> weights;
};

}  // namespace nanorun
