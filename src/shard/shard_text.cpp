// Shards from text files, one token per byte.

#include <algorithm>
#include <memory>
#include <utility>

#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/shard/shard_plan.hpp"

namespace nanorun {

namespace {

void read_bytes(const std::string& path, std::uint64_t offset, std::span<std::byte> bytes) {
  read_at(open_to_read(path, ExitCode::data), path, offset, bytes, ExitCode::data);
}

/// The documents of text files, one after the other.
class TextStream {
 public:
  /// Collective: each rank asks for the sizes of its share of the files.
  TextStream(Comm& comm, std::vector<std::string> paths) : paths_(std::move(paths)), starts_(paths_.size() + 1) {
    comm.together([&] {
      for (std::size_t i = comm.rank(); i < paths_.size(); i += comm.size())
        starts_[i + 1] = file_size(paths_[i], ExitCode::data) + 1;
    });
    comm.all_reduce(std::span(starts_), Reduce::sum);
    for (std::size_t i = 1; i < starts_.size(); ++i) starts_[i] += starts_[i - 1];
  }

  std::uint64_t count() const { return starts_.back(); }

  void read(std::uint64_t first, std::span<Token> tokens) const {
    std::vector<unsigned char> bytes;
    auto document = std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin() - 1;
    for (; !tokens.empty(); ++document) {
      if (first == starts_[document]) {
        tokens.front() = text_end_of_text;
        tokens = tokens.subspan(1);
        ++first;
      }
      bytes.resize(std::min<std::uint64_t>(tokens.size(), starts_[document + 1] - first));
      if (!bytes.empty())
        read_bytes(paths_[document], first - starts_[document] - 1, std::as_writable_bytes(std::span(bytes)));
      std::copy(bytes.begin(), bytes.end(), tokens.begin());
      tokens = tokens.subspan(bytes.size());
      first += bytes.size();
    }
  }

 private:
  std::vector<std::string> paths_;
  std::vector<std::uint64_t> starts_;  ///< first token of each document, and the end of the last
};

}  // namespace

std::vector<ShardPlan> plan_bytes(Comm& comm, const ShardOptions& options) {
  const std::vector<std::uint64_t> invalid = inspect_texts(comm, options);
  if (comm.root()) report_invalid(options, invalid, "not UTF-8; the bytes become tokens as they are");
  const auto stream = std::make_shared<TextStream>(comm, options.inputs);
  ShardPlan whole;
  whole.input = whole.source = fmt::format("{} text files", options.inputs.size());
  whole.shard.count = stream->count();
  whole.shard.vocabulary = text_vocabulary;
  whole.shard.end_of_text = text_end_of_text;
  whole.read = [stream](std::uint64_t first, std::span<Token> tokens) { stream->read(first, tokens); };
  return cut_stream(whole, options.tokens_per_shard);
}

}  // namespace nanorun
