#pragma once
// A rank's share of the documents of many files.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/comm/comm.hpp"
#include "src/shard/documents.hpp"
#include "src/shard/shard.hpp"

namespace nanorun {

/// The bytes of all files are counted one after the other and divided evenly among the ranks. A rank has the documents
/// that begin in its part. Each file counts as one byte longer than it is, so that an empty file is a document too.
class DocumentShare {
 public:
  /// Collective: each rank asks for the sizes of some files.
  DocumentShare(Comm& comm, const ShardOptions& options);

  /// The next part of a document; absent at the end. Throws as Documents::next() does.
  std::optional<Documents::Part> next();
  /// Documents::location() and Documents::refused() of the file that is being read.
  std::string location() const { return documents_->location(); }
  std::string_view refused() const { return documents_ ? documents_->refused() : std::string_view(); }
  /// The file that is being read, and its number.
  const std::string& path() const { return paths_[file()]; }
  std::size_t file() const { return std::min(file_, paths_.size() - 1); }

  /// For each file of JSON Lines the number of characters in this rank's part that U+FFFD has replaced; 0 for texts.
  std::vector<std::uint64_t> replaced() const { return replaced_; }

 private:
  bool open();

  std::vector<std::string> paths_;
  std::string field_;
  std::vector<std::uint64_t> starts_;     ///< where each file starts, and the end of the last one
  std::uint64_t first_ = 0, last_ = 0;    ///< documents that begin in [first_, last_) are in the share
  std::size_t file_ = 0;                  ///< the file that is open, or comes next
  std::unique_ptr<Documents> documents_;  ///< documents of the file that is open
  std::vector<std::uint64_t> replaced_;
};

}  // namespace nanorun
