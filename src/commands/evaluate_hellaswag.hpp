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

/// Losses of the tokens of each ending of a question, summed; nats.
using EndingLosses = std::array<double, hellaswag_endings>;

/// Tokens of sequences that hold any ending of the questions behind its context: a multiple of the attention block,
/// from what the longest needs to `most`, which may be less, or to what all need together. What the longest needs where
/// the model reaches_over_documents(), since each ending has a sequence of its own then.
int hellaswag_length(std::span<const Question> questions, const ModelConfig& model, int most);

/// Collective. Each ending is scored in a document of its own: the token that begins documents, the context, the
/// ending. Sequences of config.validation.length tokens, at least hellaswag_length(questions, config.model, 0), hold
/// several such documents, or one where the model reaches_over_documents(); the ranks take sequences in turn. `config`:
/// of the model. `step`: as the model is before it.
std::vector<EndingLosses> hellaswag_losses(Comm& comm, Trace& trace, Model<Real>& model, const Config& config,
                                           std::span<const Question> questions, kernels::Token end_of_text, long step);

/// Questions of which the ending with the smallest loss is the right one.
struct HellaswagScore {
  int by_sum = 0;   ///< of the loss of all its tokens: acc
  int by_mean = 0;  ///< of the mean loss of its tokens: acc_norm
};
HellaswagScore hellaswag_score(std::span<const Question> questions, std::span<const EndingLosses> losses);

/// evaluate() of options that name a file of questions.
std::string evaluate_hellaswag(Context& context, const EvalOptions& options);

}  // namespace nanorun
