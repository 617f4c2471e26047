#pragma once
// trace.h5 of a run under way. The file is closed between writes, so that a killed run leaves a sound file and other
// programs can read it meanwhile. If another program has the file open when rows are due, they wait in memory for the
// next write.

#include <cstdint>
#include <string>

#include "src/base/output_file.hpp"
#include "src/comm/comm.hpp"
#include "src/measure/trace_datasets.hpp"
#include "src/measure/trace_rows.hpp"

namespace nanorun {

/// Bytes of rank 0's memory that waiting rows may take; beyond that the oldest are dropped.
inline constexpr std::uint64_t max_waiting_rows = std::uint64_t{64} << 20;

/// What a TraceFile of a run that resumes behind first_step steps would warn of: a damaged file, or steps that it
/// lacks. Empty where it would not, and where the file is absent, empty, or open in another program. Changes nothing.
std::string trace_warning(const std::string& path, long first_step);

class TraceFile {
 public:
  /// Collective. `columns`: of the rows to come. A run from step 0 starts a new file; a resumed one keeps the rows of
  /// steps < first_step and the validations of steps <= first_step, says which rows are missing, and moves a damaged
  /// file out of the way. If another program has the file open for writing, all of this waits. `provenance`, of rank 0,
  /// becomes the attribute of this name; none where it is empty. Throws Error(output).
  TraceFile(Comm& comm, const TraceColumns& columns, const std::string& path, long first_step,
            const std::string& provenance = {});

  /// For rank 0: all validations, which the next append writes.
  TraceValidations& validations() { return validations_; }
  /// For rank 0: further looks at the GPUs of all columns, which the next append writes.
  TraceGpus& gpus() { return gpus_; }

  /// Collective. Rank 0 writes these rows, its own, and those that have waited. Where another program has the file
  /// open, they go on waiting, and a warning says so. Throws Error(output) on all ranks alike; the file then still has
  /// its earlier rows, and datasets other than /step may be longer, which readers ignore.
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
  TraceWidth width_;  ///< of this run's rows
  std::string path_;
  long first_step_;
  std::string provenance_;
  // On rank 0:
  bool begun_ = false;         ///< the file is this run's
  std::string reason_;         ///< why the last failed write failed
  bool held_ = false;          ///< another program had the file open at the last attempt to write
  std::uint64_t dropped_ = 0;  ///< steps whose rows were dropped since then
  TraceRows waiting_;          ///< rows of all columns that are not in the file yet
  Descriptor own_;             ///< the file, to recognise it
  TraceSizes stored_;          ///< sizes in the file
  TraceValidations validations_;
  TraceGpus gpus_;
};

}  // namespace nanorun
