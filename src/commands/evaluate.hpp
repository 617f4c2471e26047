#pragma once
// `nanorun eval`: the loss of a checkpoint's model on token shards, or its accuracy on HellaSwag.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/context.hpp"

namespace nanorun {

struct EvalOptions {
  std::string checkpoint;
  std::vector<std::string> data;       ///< shards or globs; none: the validation shards of the checkpoint's deck
  std::optional<std::int64_t> tokens;  ///< tokens to evaluate; absent: validation.tokens of the checkpoint's deck
  std::optional<int> length;           ///< tokens of a sequence; absent: validation.length of the checkpoint's deck
  bool allow_other_tokenizer = false;  ///< takes shards of another tokenizer than the model's
  std::string tokenizer;               ///< tokenizer file that the shards were encoded with; empty: none is given
  std::string hellaswag;               ///< file of questions to answer instead of reading shards; empty: none
  bool head_scales = false;            ///< also measures what operands of the LM head in FP8 can be scaled by
  std::optional<int> end_of_text;      ///< with `hellaswag`: argument of end_of_text_of()
};

/// Collective. Returns lines for the user: the mean loss in nats per token, the perplexity and, where the bytes behind
/// the tokens are known, the bits per byte; with `head_scales` the largest magnitudes of the LM head's operands and the
/// largest scales by which these do not saturate in FP8. For a file of questions they give the share that the model
/// answers rightly. Warns on standard error of shards that may be of another tokenizer. Throws Error: usage where
/// tokens or shards are missing; checkpoint; data where a file is missing, damaged, too short, does not fit the model
/// or was encoded with another tokenizer; non_finite where the loss is not finite.
std::string evaluate(Context& context, const EvalOptions& options);

}  // namespace nanorun
