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
  std::vector<std::string> data;       ///< shards, globs expand; none: the validation shards of the checkpoint's deck
  std::optional<std::int64_t> tokens;  ///< absent: validation.tokens of that deck
  std::optional<int> length;           ///< of a sequence; absent: its validation.length
  bool allow_other_tokenizer = false;  ///< of shards than that of the model's training
  std::string tokenizer;               ///< file that the shards were encoded with; empty: none is given
  std::string hellaswag;               ///< file of questions to answer, instead of all of these but `length`
  std::optional<int> end_of_text;      ///< for `hellaswag`, as end_of_text_of() takes it
};

/// Collective. Returns lines with the mean loss, the perplexity and, where the bytes behind the tokens are known, the
/// bits per byte; or, for a file of questions, the shares that the model answers rightly. Throws Error: usage where
/// tokens or shards are missing, checkpoint, data where files are missing, damaged, too short, do not fit the model or
/// were encoded with another tokenizer, non_finite. Prints warnings of shards that may be of another tokenizer.
std::string evaluate(Context& context, const EvalOptions& options);

}  // namespace nanorun
