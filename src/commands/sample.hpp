#pragma once
// `nanorun sample`: text that a checkpoint's model writes.

#include <cstdint>
#include <string>

#include "src/comm/context.hpp"

namespace nanorun {

struct SampleOptions {
  std::string checkpoint;
  std::string prompt;      ///< what the text begins with
  int tokens = 256;        ///< that the model adds at most
  double temperature = 1;  ///< 0: always the likeliest token, of several the one with the lowest id
  int top_k = 0;           ///< draws among this many of the likeliest tokens; 0: among all
  std::uint64_t seed = 1;  ///< the same seed draws the same text
  std::string tokenizer;   ///< file of the tokenizer that the model was trained with; empty: its tokens are bytes
};

/// Prints the prompt, and token by token what the model adds until it ends the document. For one rank. Throws Error:
/// usage on several ranks, or where a tokenizer is missing; checkpoint; data where it is not of the model; output.
void sample(Context& context, const SampleOptions& options);

}  // namespace nanorun
