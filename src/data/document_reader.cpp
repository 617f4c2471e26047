#include "src/data/document_reader.hpp"

#include <algorithm>

namespace nanorun {

/// The tokens from `offset` to the end of its block; empty behind the shard's last token.
std::span<const Token> DocumentReader::tokens_from(std::uint64_t offset) {
  if (offset >= shard_.count) return {};
  const std::uint64_t begin = offset / shard_block * shard_block;
  if (block_.empty() || begin != block_begin_) {
    block_.resize(std::min(shard_block, shard_.count - begin));
    try {
      reader_.read(shard_, begin, block_, vocabulary_);
    } catch (...) {
      block_.clear();
      throw;
    }
    block_begin_ = begin;
  }
  return std::span(block_).subspan(offset - begin);
}

/// Where the first document begins that begins at `offset` or later.
std::optional<std::uint64_t> DocumentReader::find_document(std::uint64_t offset) {
  while (true) {
    const std::span<const Token> tokens = tokens_from(offset);
    if (tokens.empty()) return std::nullopt;
    const auto begin = std::ranges::find(tokens, static_cast<Token>(shard_.end_of_text)) - tokens.begin();
    offset += begin;
    if (static_cast<std::size_t>(begin) < tokens.size()) return offset;
  }
}

/// Copies the first `max` tokens of the document that begins at `offset`, or all if it has fewer, to `out` unless that
/// is empty. Returns their number.
std::uint64_t DocumentReader::take_document(std::uint64_t offset, std::uint64_t max, std::span<Token> out) {
  std::uint64_t taken = 0;
  while (taken < max) {
    std::span<const Token> tokens = tokens_from(offset + taken);
    tokens = tokens.first(std::min<std::uint64_t>(tokens.size(), max - taken));
    if (tokens.empty()) break;
    const auto end =
        std::find(tokens.begin() + (taken == 0 ? 1 : 0), tokens.end(), static_cast<Token>(shard_.end_of_text));
    if (!out.empty()) std::copy(tokens.begin(), end, out.begin() + taken);
    taken += end - tokens.begin();
    if (end != tokens.end()) break;
  }
  return taken;
}

void DocumentReader::turn_to(const ShardInfo& shard) {
  if (shard.path == shard_.path) return;
  shard_ = shard;
  block_.clear();
}

std::uint64_t DocumentReader::count_documents(const ShardInfo& shard) {
  turn_to(shard);
  std::uint64_t count = 0;
  for (auto document = find_document(0); document; document = find_document(*document + 1)) ++count;
  return count;
}

std::optional<std::uint64_t> DocumentReader::fill(const ShardInfo& shard, std::uint64_t offset, const StepShape& shape,
                                                  int first, std::span<Token> rows) {
  turn_to(shard);
  const std::uint64_t size = shape.length + 1;
  for (int sequence = 0; sequence < shape.sequences; ++sequence) {
    std::span<Token> row;
    if (sequence >= first && (sequence - first + 1) * size <= rows.size())
      row = rows.subspan((sequence - first) * size, size);
    for (std::uint64_t filled = 0; filled < size;) {
      const std::optional<std::uint64_t> document = find_document(offset);
      if (!document) return std::nullopt;
      std::uint64_t max = size - filled;
      if (shape.longest_document > 0) max = std::min<std::uint64_t>(max, shape.longest_document);
      const std::uint64_t taken = take_document(*document, max, row.empty() ? row : row.subspan(filled));
      filled += taken;
      offset = *document + taken;
    }
  }
  return offset;
}

}  // namespace nanorun
