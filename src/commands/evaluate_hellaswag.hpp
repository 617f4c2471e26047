#pragma once
// HellaSwag for `nanorun eval`: which of four endings of a text a model finds likeliest.

#include <array>
#include <span>
#include <string>
#include <vector>

#include "src/commands/evaluate.hpp"
#include "src/commands/hellaswag.hpp"
#include "src/measure/trace.hpp"
#include "src/model/model.hpp"

namespace nanorun {

/// For each ending of a question the loss summed over the ending's tokens, in nats.
using EndingLosses = std::array<double, hellaswag_endings>;

/// Tokens of the sequences that hold the questions' documents (a context and one of its endings), a multiple of the
/// attention block. As many as all documents need together, but at most `most`; never fewer than the longest document
/// needs. Exactly as many as the longest needs where the model reaches_over_documents(), since each document has a
/// sequence of its own then.
int hellaswag_length(std::span<const Question> questions, const ModelConfig& model, int most);

/// Collective. Computes the losses of all endings with the model as it is before `step`. Each ending is scored in a
/// document of its own: the token that begins documents, the context, the ending. Sequences of config.validation.length
/// tokens, at least hellaswag_length(questions, config.model, 0), hold several documents, or one where the model
/// reaches_over_documents(). The ranks take sequences in turn. `config` is the deck of the model.
std::vector<EndingLosses> hellaswag_losses(Comm& comm, Trace& trace, Model<Real>& model, const Config& config,
                                           std::span<const Question> questions, kernels::Token end_of_text, long step);

/// Number of questions whose right ending has the smallest loss.
struct HellaswagScore {
  int by_sum = 0;   ///< by the loss summed over an ending's tokens: acc
  int by_mean = 0;  ///< by the mean loss per token of an ending: acc_norm
};
HellaswagScore hellaswag_score(std::span<const Question> questions, std::span<const EndingLosses> losses);

/// evaluate() for options that name a file of questions.
std::string evaluate_hellaswag(Context& context, const EvalOptions& options);

}  // namespace nanorun
