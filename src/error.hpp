#pragma once
// Errors that end a run, and the exit codes that batch scripts read.

#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <string>

namespace nanorun {

enum class ExitCode : int {
  ok = 0,
  internal = 1,       ///< a defect of the program or of the machine
  usage = 2,          ///< command line or deck
  data = 3,           ///< token shards, and files of no known format
  checkpoint = 4,     ///< reading or writing a checkpoint
  non_finite = 5,     ///< the loss is not a finite number, or gradients or weights overflowed
  communication = 6,  ///< a rank died or stopped answering
  output = 7,         ///< the output folder or the disk
  requeue = 75,       ///< stopped early with a checkpoint: submit the same job again
};

/// Which ranks meet the error: all of them alike (rank 0 reports and the job ends in order), or this rank alone
/// (it reports and aborts the job).
enum class Scope { all_ranks, this_rank };

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message, Scope scope = Scope::this_rank)
      : std::runtime_error(message), code_(code), scope_(scope) {}

  ExitCode code() const { return code_; }
  Scope scope() const { return scope_; }

 private:
  ExitCode code_;
  Scope scope_;
};

/// For destructors: a device that has failed says so in the next call that may throw.
template <class Work>
void quietly(Work&& work) {
  try {
    work();
  } catch (const std::exception&) {
  }
}

}  // namespace nanorun
