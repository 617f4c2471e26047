// What the texts of an import are, before the work.

#include <algorithm>
#include <optional>

#include "src/bin_file.hpp"
#include "src/error.hpp"
#include "src/files.hpp"
#include "src/import_plan.hpp"
#include "src/known_formats.hpp"
#include "src/utf8.hpp"

namespace nanorun {

namespace {

constexpr std::uint64_t read_bytes_at_once = std::uint64_t{1} << 20;
constexpr std::uint64_t round_bytes = std::uint64_t{1} << 28;  ///< that a rank reads before it hears of the others
constexpr double most_invalid = 0.005;                         ///< share of a file's characters
/// Of JSON Lines, which programs write, a few characters are no sign of another encoding however short the file is.
constexpr std::uint64_t few_invalid_of_jsonl = 10;
constexpr std::size_t most_lines = 20;  ///< of a report

/// Reads every ranks-th of the files, and counts what is not UTF-8.
class Inspector {
 public:
  Inspector(Comm& comm, const ShardOptions& options) : options_(options), index_(comm.rank()), stride_(comm.size()) {
    invalid_.resize(options.inputs.size());
  }

  /// Reads on; returns whether more is left. Throws Error(data).
  bool read_round() {
    std::string part;
    for (std::uint64_t done = 0; done < round_bytes;) {
      if (index_ >= options_.inputs.size()) return false;
      const std::string& path = options_.inputs[index_];
      if (!file_) open(path);
      part.resize(std::min(read_bytes_at_once, size_ - at_));
      read_at(*file_, path, at_, std::as_writable_bytes(std::span(part)), ExitCode::data);
      counter_.add(part);
      at_ += part.size();
      done += part.size() + 1;
      if (at_ == size_) close(path);
    }
    return true;
  }

  std::span<std::uint64_t> invalid() { return invalid_; }

 private:
  void open(const std::string& path) {
    if (const std::string known = known_format(head_of_file(path)); !known.empty())
      throw Error(ExitCode::data, fmt::format("{}: {}", path, known));
    file_ = open_to_read(path, ExitCode::data);
    size_ = file_size(path, ExitCode::data);
    at_ = 0;
    counter_ = {};
  }

  void close(const std::string& path) {
    counter_.end();
    invalid_[index_] = counter_.replaced();
    const auto characters = static_cast<double>(counter_.characters());
    const std::uint64_t few = options_.field.empty() ? 0 : few_invalid_of_jsonl;
    if (!options_.allow_invalid_utf8 && counter_.replaced() > few &&
        static_cast<double>(counter_.replaced()) > most_invalid * characters) {
      throw Error(ExitCode::data,
                  fmt::format("{}: {} of its {} characters are not UTF-8: convert it first, as with iconv -f LATIN1 -t "
                              "UTF-8, or take it as it is with --allow-invalid-utf8",
                              path, counter_.replaced(), counter_.characters()));
    }
    file_.reset();
    index_ += stride_;
  }

  const ShardOptions& options_;
  std::size_t index_, stride_;  ///< of the file that is open or comes next
  std::optional<Descriptor> file_;
  std::uint64_t size_ = 0, at_ = 0;
  Utf8Counter counter_;
  std::vector<std::uint64_t> invalid_;
};

}  // namespace

std::vector<std::uint64_t> inspect_texts(Comm& comm, const ShardOptions& options) {
  Inspector inspector(comm, options);
  std::uint64_t more = 1;
  for (bool own_more = true; more > 0; more = comm.all_reduce<std::uint64_t>(own_more, Reduce::max))
    comm.together([&] { own_more = own_more && inspector.read_round(); });
  comm.all_reduce(inspector.invalid(), Reduce::sum);
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
