#pragma once
// trace.json: chosen steps of a run in Chrome's trace format, which Perfetto shows. Each rank is a process in it, each
// of the rank's streams a thread.

#include <string>
#include <vector>

#include "src/comm/comm.hpp"
#include "src/measure/trace.hpp"

namespace nanorun {

/// The streams of a rank, by their numbers in trace.json.
enum class Track { compute, collectives, upload };

/// What a stream did for some time.
struct TraceSpan {
  Phase phase;           ///< Phase::count: the step as a whole
  const char* category;  ///< "step", "phase", "transfer" or "upload", by which viewers filter
  Track track;
  long step;
  double begin, seconds;        ///< `begin`: since the trace began
  Level level = Level::inside;  ///< of a transfer
};

/// Whether nanorun has written the file, by how it begins. Throws Error(output).
bool is_trace_json(const std::string& path);

/// Collective. Writes the spans of all ranks. What else has the name of the file gets another, with a warning. Throws
/// Error(output) on all ranks alike.
void write_trace_json(Comm& comm, const std::string& path, const std::vector<TraceSpan>& spans);

}  // namespace nanorun
