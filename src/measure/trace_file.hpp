#pragma once
// trace.h5, see docs/file_formats.md: closed between writes, so that a killed run leaves a whole file and others may
// read it meanwhile. Whoever has it open when rows are due makes these wait in memory for the next write.

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/output_file.hpp"
#include "src/comm/comm.hpp"
#include "src/measure/trace.hpp"

namespace nanorun {

inline constexpr const char* trace_format = "nanorun trace";

/// Rows of steps: this rank's between two writes, or the columns of all ranks, as trace.h5 has them.
struct TraceRows {
  std::vector<std::int64_t> step, ranks;
  std::vector<double> tokens, loss;
  std::vector<double> seconds;        ///< [steps, columns, phases]
  std::vector<double> communication;  ///< [steps, columns], seconds

  std::size_t size() const { return step.size(); }
  void reserve(std::size_t steps);
  void clear();
  /// Adds rows with as many columns.
  void append(const TraceRows& rows);
  /// Forgets the first steps.
  void drop(std::size_t steps);
};

/// Looks at the GPUs, in steps that ascend: those between two writes, or all.
struct TraceGpus {
  std::vector<std::int64_t> step;
  std::vector<double> power, clock;    ///< [looks, columns], watts and MHz
  std::vector<std::uint64_t> reasons;  ///< [looks, columns]

  /// Forgets the first looks.
  void drop(std::size_t looks);
};

struct TraceValidations {
  std::vector<std::int64_t> step;
  std::vector<double> loss;

  /// Forgets the validations of steps >= first.
  void truncate(std::int64_t first);
  /// Adds later ones, which replace those of the same steps and of steps behind.
  void append(const TraceValidations& later);
};

/// What rows that wait for a file take of rank 0's memory at most, in bytes; of more, the oldest are forgotten.
inline constexpr std::uint64_t max_waiting_rows = std::uint64_t{64} << 20;

/// Steps that a trace.h5 holds; 0 where there is none that can be read.
std::uint64_t traced_steps(const std::string& path);

class TraceFile {
 public:
  /// Collective. A run from step 0 starts a new file; a resumed one keeps the rows of steps < first_step and the
  /// validations of steps <= first_step, says which rows are missing, and moves a damaged file out of the way. Where
  /// another program holds the file for writing, all that waits. `provenance`, of rank 0, becomes the attribute of this
  /// name; none where it is empty. Throws Error(output).
  TraceFile(Comm& comm, const std::string& path, long first_step, const std::string& provenance = {});

  /// Those that the next append writes, on rank 0.
  TraceValidations& validations() { return validations_; }
  /// Further looks for the next append, of all ranks, on rank 0.
  TraceGpus& gpus() { return gpus_; }

  /// Collective; rank 0 writes, with the rows that have waited. Where another program holds the file, they wait on, and
  /// a warning says so. Throws Error(output) on all ranks alike; the file then has the rows before, and perhaps longer
  /// columns beside /step, which readers leave out.
  void append(const TraceRows& rows);
  /// Collective. Appends the last rows. Where other programs do not let the file go within a few seconds, a copy with
  /// the rows takes its place if they only read it; else a warning says which rows are lost.
  void finish(const TraceRows& rows);

 private:
  void begin();
  void write_or_wait();
  void write_waiting();
  void wait(const Busy& reason);
  void require_own_file();
  void leave_to_readers();

  Comm& comm_;
  std::string path_;
  long first_step_;
  std::string provenance_;
  // Of rank 0:
  bool begun_ = false;         ///< the file is this run's
  std::string reason_;         ///< why it was not written, when it was last tried in vain
  bool held_ = false;          ///< by another program, when it was last tried
  std::uint64_t dropped_ = 0;  ///< steps, since it is held
  TraceRows waiting_;          ///< of all ranks
  Descriptor own_;
  std::uint64_t stored_ = 0;
  std::uint64_t stored_gpus_ = 0;
  std::uint64_t columns_ = 0;
  TraceValidations validations_;
  TraceGpus gpus_;
};

}  // namespace nanorun
