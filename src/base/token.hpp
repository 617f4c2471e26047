#pragma once
// Token ids and their bounds.

#include <cstdint>

#include "kernels/device/types.hpp"

namespace nanorun {

using kernels::Token;

/// Number of ids that a Token can have.
inline constexpr std::uint64_t max_vocabulary = 65536;
/// Vocabulary of text without a tokenizer: a token for each byte, and one that begins documents.
inline constexpr std::uint64_t text_vocabulary = 257;
inline constexpr std::uint64_t text_end_of_text = 256;

}  // namespace nanorun
