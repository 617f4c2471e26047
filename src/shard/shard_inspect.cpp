// Looks at the texts that become shards before the work begins.

#include <algorithm>
#include <optional>
#include <utility>

#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/base/foreign_formats.hpp"
#include "src/base/utf8.hpp"
#include "src/shard/document_share.hpp"
#include "src/shard/shard_plan.hpp"
#include "src/storage/bin_file.hpp"

namespace nanorun {

namespace {

constexpr std::uint64_t read_bytes_at_once = std::uint64_t{1} << 20;
constexpr double most_invalid = 0.005;  ///< share of a file's characters
/// Programs write JSON Lines, so a few invalid characters are no sign of another encoding, however short the file is.
constexpr std::uint64_t few_invalid_of_jsonl = 10;
/// A few control characters are no sign of a binary file.
constexpr std::uint64_t few_controls = 10;
constexpr std::size_t most_lines = 20;  ///< lines on files in a report

/// Counts of the characters of each file, by the file's index. For JSON Lines they count the characters of the texts,
/// and all characters of a line that is no JSON.
struct Characters {
  explicit Characters(std::size_t files) : all(files), invalid(files), controls(files), kept_controls(files) {}

  void sum(Comm& comm) {
    for (std::vector<std::uint64_t>* numbers : {&all, &invalid, &controls, &kept_controls})
      comm.all_reduce(std::span(*numbers), Reduce::sum);
  }

  std::vector<std::uint64_t> all, invalid;
  std::vector<std::uint64_t> controls, kept_controls;  ///< all control characters; the ones within documents
};

void refuse_known_format(const std::string& path) {
  if (const std::string known = known_format(head_of_file(path)); !known.empty())
    throw Error(ExitCode::data, fmt::format("{}: {}", path, known));
}

/// Throws Error(data) where more of a file's characters are none of text than a slip explains.
void require_text(const ShardOptions& options, const Characters& found, std::size_t file) {
  if (options.allow_invalid_utf8) return;
  const std::uint64_t all = found.all[file];
  const auto refuse_most = [&](std::uint64_t count, std::uint64_t few, const char* what) {
    if (count <= few || static_cast<double>(count) <= most_invalid * static_cast<double>(all)) return;
    throw Error(ExitCode::data, fmt::format("{}: {} of its {} characters are {}, or take it as it is with "
                                            "--allow-invalid-utf8",
                                            options.inputs[file], count, all, what));
  };
  refuse_most(found.controls[file], few_controls,
              "NUL or other control characters, as a file that is no text has, or one in UTF-16 or UTF-32: make text "
              "in UTF-8 of it first, as with iconv -f UTF-16 -t UTF-8");
  if (options.field.empty()) {
    refuse_most(found.invalid[file], 0, "not UTF-8: convert it first, as with iconv -f LATIN1 -t UTF-8");
  } else {
    refuse_most(found.invalid[file], few_invalid_of_jsonl,
                "not UTF-8, or half of a surrogate pair: convert it first, as with iconv -f LATIN1 -t UTF-8, or write "
                "its texts anew, with whole characters");
  }
}

/// Reads every ranks-th of the text files.
class FileInspector {
 public:
  FileInspector(Comm& comm, const ShardOptions& options)
      : options_(options), found_(options.inputs.size()), index_(comm.rank()), stride_(comm.size()) {}

  /// Reads up to round_bytes further bytes; returns whether more are left. Throws Error(data).
  bool read_round() {
    constexpr std::uint64_t round_bytes = std::uint64_t{1} << 28;  // bytes that a rank reads between two collectives
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
      if (at_ == size_) close();
    }
    return true;
  }

  Characters& found() { return found_; }

 private:
  void open(const std::string& path) {
    refuse_known_format(path);
    file_ = open_to_read(path, ExitCode::data);
    size_ = file_size(path, ExitCode::data);
    at_ = 0;
    counter_ = {};
  }

  void close() {
    counter_.end();
    found_.all[index_] = counter_.characters();
    found_.invalid[index_] = counter_.replaced();
    found_.controls[index_] = found_.kept_controls[index_] = counter_.controls();
    require_text(options_, found_, index_);
    file_.reset();
    index_ += stride_;
  }

  const ShardOptions& options_;
  Characters found_;
  std::size_t index_, stride_;  ///< index of the file that is open or comes next; the ranks' stride
  std::optional<Descriptor> file_;
  std::uint64_t size_ = 0, at_ = 0;
  Utf8Counter counter_;
};

/// Reads the rank's share of JSON Lines.
class LineInspector {
 public:
  /// Collective.
  LineInspector(Comm& comm, const ShardOptions& options) : share_(comm, options), found_(options.inputs.size()) {
    comm.together([&] {
      for (std::size_t i = comm.rank(); i < options.inputs.size(); i += comm.size())
        refuse_known_format(options.inputs[i]);
    });
  }

  /// Reads on; returns whether more is left. Throws Error(data).
  bool read_round() {
    constexpr std::uint64_t round_bytes = std::uint64_t{1} << 26;  // bytes that a rank reads between two collectives
    for (std::uint64_t done = 0; done < round_bytes;) {
      try {
        const auto part = share_.next();
        if (!part) return false;
        found_.kept_controls[share_.file()] += count(part->text).controls();
        done += part->text.size() + 1;
      } catch (const Error& error) {
        if (error.cause() != Cause::damage) throw;
        const std::string_view line = share_.refused();
        found_.invalid[share_.file()] += count(line).replaced();
        done += line.size() + 1;
      }
    }
    return true;
  }

  /// The counts of this rank's share, once nothing is left to read.
  Characters& found() {
    const std::vector<std::uint64_t> replaced = share_.replaced();
    for (std::size_t i = 0; i < replaced.size(); ++i) found_.invalid[i] += replaced[i];
    return found_;
  }

 private:
  /// Adds to what the file has.
  Utf8Counter count(std::string_view text) {
    Utf8Counter counter;
    counter.add(text);
    counter.end();
    found_.all[share_.file()] += counter.characters();
    found_.controls[share_.file()] += counter.controls();
    return counter;
  }

  DocumentShare share_;
  Characters found_;
};

/// Collective.
template <class Inspector>
Characters inspect(Comm& comm, const ShardOptions& options) {
  Inspector inspector(comm, options);
  std::uint64_t more = 1;
  for (bool own_more = true; more > 0; more = comm.all_reduce<std::uint64_t>(own_more, Reduce::max))
    comm.together([&] { own_more = own_more && inspector.read_round(); });
  Characters found = std::move(inspector.found());
  found.sum(comm);
  return found;
}

}  // namespace

std::vector<std::uint64_t> inspect_texts(Comm& comm, const ShardOptions& options) {
  const bool lines = !options.field.empty();
  const Characters found = lines ? inspect<LineInspector>(comm, options) : inspect<FileInspector>(comm, options);
  comm.together([&] {
    for (std::size_t i = 0; i < options.inputs.size(); ++i) require_text(options, found, i);
  });
  if (comm.root())
    report_invalid(options, found.kept_controls, "neither printable nor white space, such as NUL; the text keeps them");
  return found.invalid;
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
