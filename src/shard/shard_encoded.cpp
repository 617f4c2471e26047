// Shards of text that a tokenizer encodes.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include "src/base/error.hpp"
#include "src/base/output_file.hpp"
#include "src/base/text.hpp"
#include "src/shard/document_share.hpp"
#include "src/shard/shard_plan.hpp"
#include "src/tokenizer/tokenizer.hpp"

namespace nanorun {

namespace {

constexpr std::uint64_t round_bytes = std::uint64_t{1} << 26;  ///< bytes that a rank encodes between two collectives

/// A file of tokens beside the output, of this command alone. The destructor removes it.
class ScratchFile {
 public:
  static std::string path(const std::string& output, int rank) { return partial_of(name(output, rank)); }

  ScratchFile(const std::string& output, int rank) : path_(path(output, rank)) {
    claim_output(name(output, rank), Overwrite::no, ExitCode::output);
  }
  ~ScratchFile() {
    quietly([&] { remove_file(path_, ExitCode::output); });
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  void write(std::span<const Token> tokens) {
    buffer_.insert(buffer_.end(), tokens.begin(), tokens.end());
    count_ += tokens.size();
    if (buffer_.size() >= 1 << 20) flush();
  }
  void close() {
    flush();
    file_->close();
  }
  std::uint64_t count() const { return count_; }
  /// Drops the tokens behind the first `count`.
  void cut(std::uint64_t count) {
    const std::uint64_t written = count_ - buffer_.size();
    buffer_.resize(count > written ? count - written : 0);
    if (count < written) truncate_file(path_, sizeof(Token) * count, ExitCode::output);
    count_ = count;
  }

 private:
  static std::string name(const std::string& output, int rank) {
    return fmt::format("{}.rank_{:06}", stem_of(output), rank);
  }

  void flush() {
    if (!file_) file_.emplace(path_, ExitCode::output);
    file_->write(std::as_bytes(std::span(buffer_)));
    buffer_.clear();
  }

  std::string path_;
  std::optional<AppendFile> file_;
  std::vector<Token> buffer_;
  std::uint64_t count_ = 0;
};

/// The kind of a reason for which a document was passed over, without what differs from one document to the next.
std::string kind_of_reason(const std::string& path, std::string_view reason) {
  if (reason.starts_with(path + ": ")) reason.remove_prefix(path.size() + 2);
  if (reason.starts_with("line ")) reason.remove_prefix(std::min(reason.find(": "), reason.size() - 2) + 2);
  if (reason.find("cannot be cut into words") != reason.npos) reason = "text that cannot be cut into words";
  if (reason.starts_with("not JSON")) reason = "not JSON";
  return printable(fmt::format("{}: {}", path, reason.substr(0, reason.find(';'))));
}

/// Documents that were passed over.
struct Skipped {
  static constexpr std::size_t most_listed = 100;
  static constexpr std::size_t most_kinds = 1000;

  std::uint64_t count = 0;
  std::string reasons;                         ///< a line for each of the first ones; begins with file and line
  std::map<std::string, std::uint64_t> kinds;  ///< number of documents by file and kind of reason

  void add(const std::string& path, const std::string& reason) {
    if (count++ < most_listed) reasons += printable(reason) + "\n";
    const std::string kind = kind_of_reason(path, reason);
    ++kinds[kinds.size() < most_kinds || kinds.contains(kind) ? kind : "other files and reasons"];
  }

  /// Lines of number and kind.
  std::string kind_lines() const {
    std::string lines;
    for (const auto& [kind, number] : kinds) lines += fmt::format("{} {}\n", number, kind);
    return lines;
  }
};

/// The sums of all ranks' Skipped::kind_lines().
std::map<std::string, std::uint64_t> sum_kinds(const std::vector<std::string>& of_ranks) {
  std::map<std::string, std::uint64_t> kinds;
  for (const std::string& lines : of_ranks) {
    std::istringstream stream(lines);
    std::string kind;
    for (std::uint64_t number; stream >> number && std::getline(stream.ignore(), kind);) kinds[kind] += number;
  }
  return kinds;
}

/// Encodes the share of a rank.
class Encoder {
 public:
  /// Collective.
  Encoder(Comm& comm, const ShardOptions& options, Tokenizer& tokenizer)
      : share_(comm, options), tokenizer_(tokenizer), skips_(options.skip_bad) {}

  /// Encodes up to round_bytes further bytes; returns whether more are left. Throws Error(data) for a document that
  /// cannot be encoded, unless such documents are passed over.
  bool encode_round(ScratchFile& scratch) {
    for (std::uint64_t done = 0; done < round_bytes;) {
      try {
        const auto part = share_.next();
        if (!part) {
          scratch.close();
          return false;
        }
        encode(*part, scratch);
        done += part->text.size() + 1;
      } catch (const Error& error) {
        if (error.cause() != Cause::damage) throw;
        if (!skips_)
          throw Error(ExitCode::data, fmt::format("{}; --skip-bad passes over such documents", error.what()));
        skipped_.add(share_.path(), error.what());
        scratch.cut(complete_);
        drops_ = true;
        ++done;
      }
    }
    return true;
  }

  const Skipped& skipped() const { return skipped_; }
  std::vector<std::uint64_t> replaced() const { return share_.replaced(); }

 private:
  void encode(const Documents::Part& part, ScratchFile& scratch) {
    if (part.begins) drops_ = false;
    if (drops_) return;
    const Token end_of_text = tokenizer_.end_of_text();
    if (part.begins) scratch.write({&end_of_text, 1});
    try {
      scratch.write(tokenizer_.encode(part.text));
    } catch (const Error& error) {
      if (error.code() != ExitCode::data) throw;
      throw Error(ExitCode::data, fmt::format("{}: {}", share_.location(), error.what()), Scope::this_rank,
                  Cause::damage);
    }
    if (part.ends) complete_ = scratch.count();
  }

  DocumentShare share_;
  Tokenizer& tokenizer_;
  const bool skips_;
  std::uint64_t complete_ = 0;  ///< number of tokens of complete documents
  bool drops_ = false;          ///< drops the further parts of a document that was passed over
  Skipped skipped_;
};

/// Collective. Prints on rank 0 what was replaced and passed over.
void report(Comm& comm, const ShardOptions& options, const Encoder& encoder, std::vector<std::uint64_t> invalid) {
  if (!options.field.empty()) {
    invalid = encoder.replaced();
    comm.all_reduce(std::span(invalid), Reduce::sum);
  }
  const std::uint64_t count = comm.all_reduce(encoder.skipped().count, Reduce::sum);
  const std::vector<std::string> reasons = comm.gather(encoder.skipped().reasons);
  const std::vector<std::string> kinds = comm.gather(encoder.skipped().kind_lines());
  if (!comm.root()) return;
  report_invalid(options, invalid,
                 options.field.empty() ? "not UTF-8; U+FFFD takes the place"
                                       : "not UTF-8, or half of a surrogate pair; U+FFFD takes the place");
  if (count == 0) return;
  std::size_t listed = 0;
  for (const std::string& of_rank : reasons) {
    for (std::size_t at = 0; at < of_rank.size() && listed < Skipped::most_listed; ++listed) {
      const std::size_t end = of_rank.find('\n', at);
      complain("passed over " + of_rank.substr(at, end - at));
      at = end + 1;
    }
  }
  if (count > listed) {
    for (const auto& [kind, number] : sum_kinds(kinds)) complain(fmt::format("passed over {} of {}", number, kind));
  }
  complain(fmt::format("{} document{} passed over{}", count, count == 1 ? " was" : "s were",
                       count > listed ? fmt::format(", of which the first {} are listed", listed) : ""));
}

/// The tokens of all ranks' files, one after the other.
class ScratchStream {
 public:
  /// Collective: encodes the share of each rank, and prints on rank 0 what of it was lost. `invalid`: inspect_texts().
  ScratchStream(Comm& comm, const ShardOptions& options, Tokenizer& tokenizer, std::vector<std::uint64_t> invalid)
      : starts_(comm.size() + 1) {
    Encoder encoder(comm, options, tokenizer);
    comm.together([&] { own_ = std::make_unique<ScratchFile>(options.output, comm.rank()); });
    // Ranks wait for each other often, so that none waits for long, and all end where one cannot go on.
    std::uint64_t more = 1;
    for (bool own_more = true; more > 0; more = comm.all_reduce<std::uint64_t>(own_more, Reduce::max)) {
      comm.together([&] { own_more = own_more && encoder.encode_round(*own_); });
    }
    report(comm, options, encoder, std::move(invalid));
    starts_[comm.rank() + 1] = own_->count();
    comm.all_reduce(std::span(starts_), Reduce::sum);
    for (int rank = 0; rank < comm.size(); ++rank) {
      starts_[rank + 1] += starts_[rank];
      paths_.push_back(ScratchFile::path(options.output, rank));
    }
  }

  std::uint64_t count() const { return starts_.back(); }

  void read(std::uint64_t first, std::span<Token> tokens) const {
    auto rank = std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin() - 1;
    for (; !tokens.empty(); ++rank) {
      const auto part = tokens.first(std::min<std::uint64_t>(tokens.size(), starts_[rank + 1] - first));
      if (part.empty()) continue;
      read_at(open_to_read(paths_[rank], ExitCode::output), paths_[rank], sizeof(Token) * (first - starts_[rank]),
              std::as_writable_bytes(part), ExitCode::output);
      tokens = tokens.subspan(part.size());
      first += part.size();
    }
  }

 private:
  std::unique_ptr<ScratchFile> own_;
  std::vector<std::string> paths_;     ///< the files, by rank
  std::vector<std::uint64_t> starts_;  ///< number of the first token of each file, and the end of the last one
};

/// Collective. Throws on all ranks where a rank cannot load the tokenizer, or has another one than rank 0.
Tokenizer load_tokenizer(Comm& comm, const std::string& path) {
  std::optional<Tokenizer> tokenizer;
  comm.together([&] { tokenizer.emplace(path); });
  const std::uint64_t own = tokenizer->checksum();
  std::uint64_t first = own;
  comm.broadcast(std::as_writable_bytes(std::span(&first, 1)));
  comm.together([&] {
    if (own != first)
      throw Error(ExitCode::data,
                  fmt::format("{}: rank {} has another table under this name than rank 0", path, comm.rank()));
  });
  return std::move(*tokenizer);
}

}  // namespace

std::vector<ShardPlan> plan_encoded(Comm& comm, const ShardOptions& options) {
  for (const std::string& path : options.inputs) {
    if (options.field.empty() && path.ends_with(".jsonl"))
      throw Error(ExitCode::data, fmt::format("{}: name the key of its texts: --field text", path), Scope::all_ranks);
  }
  Tokenizer tokenizer = load_tokenizer(comm, options.tokenizer);
  const auto stream = std::make_shared<ScratchStream>(comm, options, tokenizer, inspect_texts(comm, options));
  ShardPlan whole;
  whole.input = whole.source =
      fmt::format("{} {} files", options.inputs.size(), options.field.empty() ? "text" : "JSONL");
  whole.shard.count = stream->count();
  whole.shard.vocabulary = tokenizer.vocabulary();
  whole.shard.end_of_text = tokenizer.end_of_text();
  whole.shard.tokenizer = tokenizer.name();
  whole.shard.tokenizer_checksum = tokenizer.checksum();
  whole.read = [stream](std::uint64_t first, std::span<Token> tokens) { stream->read(first, tokens); };
  if (whole.shard.count == 0)
    throw Error(ExitCode::data, fmt::format("{}: no documents", whole.input), Scope::all_ranks);
  return cut_stream(whole, options.tokens_per_shard);
}

}  // namespace nanorun
