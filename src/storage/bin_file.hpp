#pragma once
// The speedrun's .bin files of tokens, in the format of llm.c: 256 little-endian int32 (magic 20240520, version 1,
// token count, and words that are kept as they are), then that many little-endian uint16 tokens and nothing more. They
// say nothing of their vocabulary, and have no checksums.

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "src/base/files.hpp"
#include "src/base/token.hpp"

namespace nanorun {

inline constexpr std::int32_t bin_magic = 20240520;  ///< first 32 bits
inline constexpr std::int32_t bin_version = 1;
inline constexpr std::size_t bin_header_words = 256;
inline constexpr std::uint64_t bin_first_byte = bin_header_words * sizeof(std::int32_t);  ///< of the tokens
inline constexpr std::uint64_t bin_vocabulary = 50257;  ///< GPT-2's, with which the speedrun's files were made
inline constexpr std::uint64_t bin_end_of_text = 50256;

using BinHeader = std::array<std::int32_t, bin_header_words>;

/// The first known_format_bytes bytes of a regular file, for known_format(). Throws Error(data).
std::string head_of_file(const std::string& path);

/// Whether a regular file begins like a .bin file. Throws Error(data) where it cannot be read.
bool is_bin_file(const std::string& path);

/// A .bin file held open for reading.
class BinFile {
 public:
  /// Throws Error(data) where the file cannot be opened, or its header does not fit its size.
  explicit BinFile(const std::string& path);

  const std::string& path() const { return path_; }
  const BinHeader& header() const { return header_; }
  std::uint64_t count() const { return static_cast<std::uint64_t>(header_[2]); }
  /// Fills `tokens` with the tokens of the file from number `first` on. Throws Error(data) where they cannot be read.
  void read(std::uint64_t first, std::span<Token> tokens) const;

 private:
  std::string path_;
  Descriptor file_;
  BinHeader header_;
};

}  // namespace nanorun
