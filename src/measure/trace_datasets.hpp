#pragma once
// The attributes and datasets of trace.h5 (docs/file_formats.md): creates, reads and appends to them. A write that
// fails leaves no row in part: /step and /gpu_step, by which readers count rows, come last.

#include <algorithm>
#include <cstdint>
#include <string>

#include "src/measure/trace_columns.hpp"
#include "src/measure/trace_rows.hpp"
#include "src/storage/h5.hpp"

namespace nanorun {

inline constexpr const char* trace_format = "nanorun trace";

/// How wide the rows of a file are.
struct TraceWidth {
  std::uint64_t columns = 0;  ///< ranks or groups of ranks
  std::uint64_t groups = 0;   ///< columns that may be groups; 0: each column is a rank

  /// Room for rows of both kinds.
  TraceWidth wider(const TraceWidth& other) const {
    return {std::max(columns, other.columns), std::max(groups, other.groups)};
  }
};

/// What is stored in a trace.h5.
struct TraceSizes {
  std::uint64_t rows = 0;   ///< steps that have a row
  TraceWidth width{};       ///< for which a row has room
  std::uint64_t looks = 0;  ///< rows on the state of GPUs
};
/// Throws Error(output, damage) where a dataset has an impossible shape.
TraceSizes trace_sizes(const h5::File& file);

/// All validations that the file holds. Throws Error(output).
TraceValidations read_trace_validations(const h5::File& file);

/// What a run that continues at step `first_step` keeps of a trace.h5.
struct EarlierTrace {
  std::int64_t begin;  ///< step with which the trace began
  TraceWidth width{};
  TraceRows rows{};
  TraceValidations validations{};
  TraceGpus gpus{};
};
/// Reads the rows and looks of steps < first_step, and the validations of steps <= first_step. Throws Error(output),
/// with Cause::damage where the file is damaged or of another version of the format.
EarlierTrace read_earlier_trace(const h5::File& file, long first_step);

/// Creates a file with rows of this width, at least earlier.width, that holds `earlier`. Throws Error(output).
void create_trace(const std::string& path, const TraceWidth& width, const EarlierTrace& earlier,
                  const std::string& provenance);

/// An upper bound of the bytes that so many steps, validations and looks take in the file.
std::uint64_t trace_bytes(std::uint64_t steps, const TraceWidth& width, const TraceValidations& validations,
                          const TraceGpus& gpus);

/// Writes looks at the GPUs behind the first `stored` ones. Throws Error(output).
void append_gpus(h5::File& file, std::uint64_t stored, const TraceGpus& gpus);
/// Writes rows with `columns` columns behind the first `stored` ones, and replaces all validations. Throws
/// Error(output).
void append_rows(h5::File& file, std::uint64_t stored, const TraceRows& rows, std::uint64_t columns,
                 const TraceValidations& validations);

/// Whether nanorun has written the file, also an earlier program, by the attribute `format`. True where another program
/// has it open, so that nobody can tell. Throws Error(output), with Cause::damage where the file is damaged or no HDF5.
bool is_trace(const std::string& path);

/// Number of steps that a trace.h5 holds; 0 where there is no file of nanorun's that can be read.
std::uint64_t traced_steps(const std::string& path);

}  // namespace nanorun
