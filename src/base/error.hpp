#pragma once
// Errors that end a run, and the exit codes that batch scripts read.

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include "src/base/text.hpp"

namespace nanorun {

enum class ExitCode : int {
  ok = 0,
  internal = 1,       ///< a defect of the program or of the machine
  usage = 2,          ///< command line, environment variables or deck
  data = 3,           ///< reading token shards and what they are made from; files of no known format
  checkpoint = 4,     ///< reading or writing a checkpoint
  non_finite = 5,     ///< the loss is not a finite number, or gradients or weights overflowed
  communication = 6,  ///< a rank died or stopped answering
  output = 7,         ///< the output directory, shards that are written, the disk or standard output
  requeue = 75,       ///< stopped early with a checkpoint: submit the same job again
};

/// Which ranks meet the error. all_ranks: every rank meets it, rank 0 reports it, and the job ends in order. this_rank:
/// this rank alone meets it, reports it and aborts the job.
enum class Scope { all_ranks, this_rank };

/// The cause of an error. damage: the contents of a file are at fault, and another file may serve in its place. other:
/// anything else, such as a file system that fails, which says nothing about the file.
enum class Cause { other, damage };

/// An error that ends a command or a run. Its message has one line, or one line for each of several errors.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message, Scope scope = Scope::this_rank, Cause cause = Cause::other)
      : std::runtime_error(message), code_(code), scope_(scope), cause_(cause) {}

  ExitCode code() const { return code_; }
  Scope scope() const { return scope_; }
  Cause cause() const { return cause_; }

 private:
  ExitCode code_;
  Scope scope_;
  Cause cause_;
};

/// Collects errors that do not depend on each other, to report them at once.
class ErrorList {
 public:
  static constexpr std::size_t max_shown = 20;

  void add(const std::string& message) {
    if (full()) return;
    messages_ += (count_ == 0 ? "" : "\n") + message;
    if (++count_ == max_shown) messages_ += "\nfurther errors, if any, are not shown";
  }
  bool full() const { return count_ == max_shown; }
  /// Throws an Error with a line for each, if there is one.
  void rethrow(ExitCode code, Scope scope) const {
    if (count_ > 0) throw Error(code, messages_, scope);
  }

 private:
  std::string messages_;
  std::size_t count_ = 0;
};

/// Writes the whole text to a descriptor. Returns false if that fails; errno then has the reason, EIO where a write
/// takes no byte.
inline bool write_whole(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = EIO;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// Prints a line on standard error. Does nothing where nobody can read it, as after the terminal was closed.
inline void complain(const std::string& message) {
  write_whole(STDERR_FILENO, "nanorun: " + message_line(message) + "\n");
}
inline void warn(const std::string& message) { complain("warning: " + message); }

/// Runs `work` and ignores what it throws: in destructors, and where a failure does not matter.
template <class Work>
void quietly(Work&& work) {
  try {
    work();
  } catch (const std::exception&) {
  }
}

}  // namespace nanorun
