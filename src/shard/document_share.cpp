#include "src/shard/document_share.hpp"

#include <algorithm>

#include "src/base/error.hpp"
#include "src/base/files.hpp"

namespace nanorun {

DocumentShare::DocumentShare(Comm& comm, const ShardOptions& options)
    : paths_(options.inputs), field_(options.field), starts_(paths_.size() + 1), replaced_(paths_.size()) {
  comm.together([&] {
    for (std::size_t i = comm.rank(); i < paths_.size(); i += comm.size())
      starts_[i + 1] = file_size(paths_[i], ExitCode::data) + 1;
  });
  comm.all_reduce(std::span(starts_), Reduce::sum);
  for (std::size_t i = 1; i < starts_.size(); ++i) starts_[i] += starts_[i - 1];
  const std::uint64_t ranks = comm.size(), whole = starts_.back() / ranks, rest = starts_.back() % ranks;
  const auto bound = [&](std::uint64_t rank) { return whole * rank + rest * rank / ranks; };
  first_ = bound(comm.rank());
  last_ = bound(comm.rank() + 1);
  file_ = std::upper_bound(starts_.begin(), starts_.end(), first_) - starts_.begin() - 1;
  if (field_.empty() && starts_[file_] < first_) ++file_;  // another rank has that document
}

std::optional<Documents::Part> DocumentShare::next() {
  while (true) {
    if (!documents_ && !open()) return std::nullopt;
    if (auto part = documents_->next()) return part;
    replaced_[file_] = documents_->replaced();
    documents_.reset();
    ++file_;
  }
}

/// Opens the file that comes next, if part of it is in the share.
bool DocumentShare::open() {
  if (file_ >= paths_.size() || starts_[file_] >= last_) return false;
  const std::uint64_t start = starts_[file_];
  documents_ = field_.empty() ? open_text_document(paths_[file_])
                              : open_json_lines(paths_[file_], field_, std::max(first_, start) - start, last_ - start);
  return true;
}

}  // namespace nanorun
