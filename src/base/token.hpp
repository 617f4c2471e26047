#pragma once
// Token ids, and what bounds them.

#include <cstdint>

#include "kernels/device/types.hpp"

namespace nanorun {

using kernels::Token;

/// Ids that a Token can have.
inline constexpr std::uint64_t max_vocabulary = 65536;
/// Of text without a tokenizer: a token a byte, and one that begins documents.
inline constexpr std::uint64_t text_vocabulary = 257;
inline constexpr std::uint64_t text_end_of_text = 256;

}  // namespace nanorun
