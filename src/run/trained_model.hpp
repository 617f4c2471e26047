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

/// Slabs for all tensors /weights/<name> of the table, each with all rows, and without memory.
std::vector<Slab<float>> weight_slabs(const ParameterTable& table);

/// Throws Error(checkpoint) where the checkpoint's fingerprint is not that of the model in its deck, whose table this
/// is.
void require_own_model(const CheckpointHeader& header, const ParameterTable& table, const std::string& path);

enum class Warn : bool { no, yes };

/// Throws Error(data) where the checkpoint `path` records another tokenizer than this one, which is read from the file
/// `table`, or where its model has fewer tokens. Where the checkpoint records no tokenizer, but another vocabulary or
/// end-of-text token, prints a warning if asked to.
void require_own_tokenizer(const CheckpointHeader& header, const Config& config, const std::string& path,
                           const Tokenizer& tokenizer, const std::string& table, Warn warn = Warn::yes);

/// What a Model is built from that only validates or continues text.
struct TrainedWeights {
  /// Collective. Every rank reads all weights and verifies their checksums. `config`: trained_config() of the
  /// checkpoint. Throws Error(checkpoint), Error(internal) where memory is short.
  TrainedWeights(Comm& comm, const std::string& path, const CheckpointHeader& header, const Config& config,
                 kernels::Stream stream);

  ParameterTable table;
  Weights<Real> weights;
};

}  // namespace nanorun
