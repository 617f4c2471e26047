#pragma once
// Files of multiple-choice questions in the format of llm.c, such as its hellaswag_val.bin: 256 little-endian int32
// (magic 20240522, version 1, number of questions, bytes of the longest one, the rest free), then the questions one
// after another in little-endian uint16: 65535, bytes of the question, its index, the label, the number of endings (4),
// the length of the context, its tokens, and for each ending its length and its tokens. The files do not name their
// vocabulary, and have no checksums.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device/types.hpp"

namespace nanorun {

inline constexpr std::int32_t hellaswag_magic = 20240522;  ///< first 32 bits
inline constexpr std::int32_t hellaswag_version = 1;
inline constexpr std::size_t hellaswag_endings = 4;
/// Largest file of questions; HellaSwag's has 3.6 MB.
inline constexpr std::uint64_t max_hellaswag_bytes = std::uint64_t{1} << 28;

/// A context and four endings, none of them empty. endings[label] is the right one.
struct Question {
  std::vector<kernels::Token> context;
  std::array<std::vector<kernels::Token>, hellaswag_endings> endings;
  std::size_t label = 0;
};

/// Reads all questions of a file: at least one. Throws Error(data) where the file cannot be read, is not of the format,
/// or has a token that is not below `vocabulary`.
std::vector<Question> read_hellaswag(const std::string& path, std::uint64_t vocabulary);

}  // namespace nanorun
