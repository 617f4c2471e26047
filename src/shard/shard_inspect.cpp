// Looks at the texts that become shards before the work begins.

#include <algorithm>
#include <optional>

#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/base/json_mend.hpp"
#include "src/base/known_formats.hpp"
#include "src/base/utf8.hpp"
#include "src/shard/shard_plan.hpp"
#include "src/storage/bin_file.hpp"

namespace nanorun {

namespace {

constexpr std::uint64_t read_bytes_at_once = std::uint64_t{1} << 20;
constexpr std::uint64_t round_bytes = std::uint64_t{1} << 28;  ///< that a rank reads between two collectives
constexpr double most_invalid = 0.005;                         ///< share of a file's characters
/// In JSON Lines, which programs write, a few such characters are no sign of another encoding, however short the file
/// is.
constexpr std::uint64_t few_invalid_of_jsonl = 10;
/// A few control characters are no sign of a binary file.
constexpr std::uint64_t few_controls = 10;
constexpr std::size_t most_lines = 20;  ///< that a report has for files

/// Reads this rank's files, every ranks-th, and counts the characters that text does not have.
class Inspector {
 public:
  Inspector(Comm& comm, const ShardOptions& options) : options_(options), index_(comm.rank()), stride_(comm.size()) {
    invalid_.resize(options.inputs.size());
    controls_.resize(options.inputs.size());
  }

  /// Reads up to round_bytes further bytes; returns whether more are left. Throws Error(data).
  bool read_round() {
    std::string part;
    for (std::uint64_t done = 0; done < round_bytes;) {
      if (index_ >= options_.inputs.size()) return false;
      const std::string& path = options_.inputs[index_];
      if (!file_) open(path);
      part.resize(std::min(read_bytes_at_once, size_ - at_));
      read_at(*file_, path, at_, std::as_writable_bytes(std::span(part)), ExitCode::data);
      counter_.add(part);
      if (!options_.field.empty()) halves_.add(part);
      at_ += part.size();
      done += part.size() + 1;
      if (at_ == size_) close(path);
    }
    return true;
  }

  std::span<std::uint64_t> invalid() { return invalid_; }
  std::span<std::uint64_t> controls() { return controls_; }

 private:
  void open(const std::string& path) {
    if (const std::string known = known_format(head_of_file(path)); !known.empty())
      throw Error(ExitCode::data, fmt::format("{}: {}", path, known));
    file_ = open_to_read(path, ExitCode::data);
    size_ = file_size(path, ExitCode::data);
    at_ = 0;
    counter_ = {};
    halves_ = {};
  }

  void close(const std::string& path) {
    counter_.end();
    halves_.end();
    invalid_[index_] = counter_.replaced();
    controls_[index_] = counter_.controls();
    if (!options_.allow_invalid_utf8) require_text(path);
    file_.reset();
    index_ += stride_;
  }

  void require_text(const std::string& path) const {
    const auto refuse_most = [&](std::uint64_t count, std::uint64_t few, const char* what) {
      if (count <= few || static_cast<double>(count) <= most_invalid * static_cast<double>(counter_.characters()))
        return;
      throw Error(ExitCode::data, fmt::format("{}: {} of its {} characters are {}, or take it as it is with "
                                              "--allow-invalid-utf8",
                                              path, count, counter_.characters(), what));
    };
    refuse_most(counter_.controls(), few_controls,
                "NUL or other control characters, as a file that is no text has, or one in UTF-16 or UTF-32: make text "
                "in UTF-8 of it first, as with iconv -f UTF-16 -t UTF-8");
    const std::uint64_t few = options_.field.empty() ? 0 : few_invalid_of_jsonl;
    refuse_most(counter_.replaced(), few, "not UTF-8: convert it first, as with iconv -f LATIN1 -t UTF-8");
    refuse_most(counter_.replaced() + halves_.count(), few,
                "not UTF-8 or an escape of half a surrogate pair: write its texts anew, with whole characters");
  }

  const ShardOptions& options_;
  std::size_t index_, stride_;  ///< of the file that is open or comes next
  std::optional<Descriptor> file_;
  std::uint64_t size_ = 0, at_ = 0;
  Utf8Counter counter_;
  HalfPairCounter halves_;  ///< of JSON Lines
  std::vector<std::uint64_t> invalid_, controls_;
};

}  // namespace

std::vector<std::uint64_t> inspect_texts(Comm& comm, const ShardOptions& options) {
  Inspector inspector(comm, options);
  std::uint64_t more = 1;
  for (bool own_more = true; more > 0; more = comm.all_reduce<std::uint64_t>(own_more, Reduce::max))
    comm.together([&] { own_more = own_more && inspector.read_round(); });
  comm.all_reduce(inspector.invalid(), Reduce::sum);
  comm.all_reduce(inspector.controls(), Reduce::sum);
  if (comm.root())
    report_invalid(options, inspector.controls(),
                   "neither printable nor white space, such as NUL; the text keeps them");
  return {inspector.invalid().begin(), inspector.invalid().end()};
}

void report_invalid(const ShardOptions& options, std::span<const std::uint64_t> invalid, const char* outcome) {
  std::size_t files = 0;
  for (std::size_t i = 0; i < invalid.size(); ++i) {
    if (invalid[i] == 0 || ++files > most_lines) continue;
    complain(fmt::format("{}: {} of its characters {} {}", options.inputs[i], invalid[i],
                         invalid[i] == 1 ? "is" : "are", outcome));
  }
  if (files > most_lines) complain(fmt::format("and {} further files with such characters", files - most_lines));
}

}  // namespace nanorun
