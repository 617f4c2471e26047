#pragma once
// Sequences that begin with a document.
//
// One cursor goes through a shard and fills the sequences of a step in turn, each with n + 1 tokens: n inputs, and the
// target of the last. A document begins with the end-of-text token. A sequence takes the next document that begins at
// the cursor or behind it: at most longest_document tokens, and at most as many as it has room for. It takes further
// documents until it is full. The cursor then stands behind the last token taken, so that the rest of a cut document is
// passed over. A sequence with room for one more token takes the first token of the next document, the rest of which is
// passed over too. A shard's last document ends with the shard. If the documents run out before the step is full, the
// whole step is dropped.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/data/shard_file.hpp"
#include "src/data/step_plan.hpp"

namespace nanorun {

/// Fills the sequences of steps from the documents of shards, which it reads block by block.
class DocumentReader {
 public:
  /// Token ids must be smaller than `vocabulary`.
  explicit DocumentReader(std::uint64_t vocabulary) : vocabulary_(vocabulary) {}

  /// Packs a step from token `offset` of a shard on. Writes its sequences from number `first` on, as many as `rows` [n,
  /// shape.length + 1] holds, and only counts the others. Returns the offset from which the next step looks for a
  /// document, or nothing if the rest of the shard does not fill the step. Throws what ShardReader::read() throws, also
  /// for a token that no sequence takes if it lies in a block that was read.
  std::optional<std::uint64_t> fill(const ShardInfo& shard, std::uint64_t offset, const StepShape& shape, int first,
                                    std::span<Token> rows);

  /// Reads a whole shard. Returns the number of documents that begin in it.
  std::uint64_t count_documents(const ShardInfo& shard);

 private:
  void turn_to(const ShardInfo& shard);
  std::span<const Token> tokens_from(std::uint64_t offset);
  std::optional<std::uint64_t> find_document(std::uint64_t offset);
  std::uint64_t take_document(std::uint64_t offset, std::uint64_t max, std::span<Token> out);

  std::uint64_t vocabulary_;
  ShardReader reader_;
  ShardInfo shard_;                ///< the shard that block_ is read from
  std::uint64_t block_begin_ = 0;  ///< number of the block's first token in the shard
  std::vector<Token> block_;       ///< shard_block tokens, fewer at the shard's end; empty before the first read
};

}  // namespace nanorun
