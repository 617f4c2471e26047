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

/// The files lie one after the other, each with one byte more than it has. Each rank has the documents that begin in
/// an even part of the bytes.
class DocumentShare {
 public:
  /// Collective: each rank asks for the sizes of some files.
  DocumentShare(Comm& comm, const ShardOptions& options);

  /// The next part of a document; nothing at the end. Throws as Documents::next() does.
  std::optional<Documents::Part> next();
  /// Documents::place() and Documents::refused() of the file that is read.
  std::string place() const { return documents_->place(); }
  std::string_view refused() const { return documents_ ? documents_->refused() : std::string_view(); }
  /// The file that is read, and its number.
  const std::string& path() const { return paths_[file()]; }
  std::size_t file() const { return std::min(file_, paths_.size() - 1); }

  /// Characters of each file's part of this rank that U+FFFD has replaced; of JSON Lines alone.
  std::vector<std::uint64_t> replaced() const { return replaced_; }

 private:
  bool open();

  std::vector<std::string> paths_;
  std::string field_;
  std::vector<std::uint64_t> starts_;     ///< of each file, and the end of the last
  std::uint64_t first_ = 0, last_ = 0;    ///< documents that begin here are in the share
  std::size_t file_ = 0;                  ///< the one that is open, or comes next
  std::unique_ptr<Documents> documents_;  ///< of it
  std::vector<std::uint64_t> replaced_;
};

}  // namespace nanorun
