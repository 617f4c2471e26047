#pragma once
// `nanorun sample`: lets a checkpoint's model write text.

#include <cstdint>
#include <string>

#include "src/comm/context.hpp"

namespace nanorun {

struct SampleOptions {
  std::string checkpoint;
  std::string prompt;      ///< what the text begins with
  int tokens = 256;        ///< most tokens that the model adds
  double temperature = 1;  ///< 0: always takes the likeliest token; between equals, the lowest id
  int top_k = 0;           ///< draws among the top_k likeliest tokens; 0: among all
  std::uint64_t seed = 1;  ///< the same seed draws the same text
  std::string tokenizer;   ///< tokenizer file that the model was trained with; empty: its tokens are bytes
};

/// Prints the prompt, then token by token what the model adds, until it ends the document or has added options.tokens.
/// For one rank. Throws Error: usage on several ranks, or where a tokenizer is missing; checkpoint; data where the
/// tokenizer is not the model's; output.
void sample(Context& context, const SampleOptions& options);

}  // namespace nanorun
