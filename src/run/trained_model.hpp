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

/// The deck of a checkpoint, changed for a model that is no longer trained: its LM head computes in working precision.
/// Throws Error(usage) where this build cannot compute the model, or where the deck is no deck of this program.
Config trained_config(const CheckpointHeader& header, const std::string& path,
                      const std::vector<std::string>& overrides = {});

/// The token that begins documents: `given`, else 256 where the vocabulary has 257 tokens (text as bytes), and 50256
/// where it has 50257 (GPT-2). Throws Error(usage) where none is given and the vocabulary has another size, or where
/// `given` is not in the vocabulary.
kernels::Token end_of_text_of(const std::string& checkpoint, const Config& config, std::optional<int> given);

/// Slabs for all tensors /weights/<name> of the table, with all rows and without memory.
std::vector<Slab<float>> weight_slabs(const ParameterTable& table);

/// Throws Error(checkpoint) if the checkpoint's fingerprint is not the one of `table`, the parameter table of its own
/// deck.
void require_own_model(const CheckpointHeader& header, const ParameterTable& table, const std::string& path);

enum class Warn : bool { no, yes };

/// Throws Error(data) if the checkpoint `path` records another tokenizer than `tokenizer`, or if its model has fewer
/// tokens. If the checkpoint records no tokenizer, but another vocabulary or end-of-text token, prints a warning,
/// unless `warn` says no. `table`: the file of `tokenizer`, for messages.
void require_own_tokenizer(const CheckpointHeader& header, const Config& config, const std::string& path,
                           const Tokenizer& tokenizer, const std::string& table, Warn warn = Warn::yes);

/// Parameter table and weights for a Model that only validates or continues text: those of the last validation, where a
/// run is finished (final_weights.hpp).
struct TrainedWeights {
  /// Collective. Every rank reads all weights and verifies their checksums. `config`: trained_config() of the
  /// checkpoint. Throws Error(checkpoint), Error(internal) where memory is short.
  TrainedWeights(Comm& comm, const std::string& path, const CheckpointHeader& header, const Config& config,
                 kernels::Stream stream);

  ParameterTable table;
  Weights<Real> weights;
};

}  // namespace nanorun
