#pragma once
// trace.json: chosen steps of a run in Chrome's trace format, which Perfetto shows. Each rank is a process in it, each
// of the rank's streams a thread. Of many ranks it shows a few.

#include <span>
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

/// A rank that trace.json shows, and the name of its process.
struct ShownRank {
  int rank;
  std::string name;
};
/// Rank 0, and of its node and those of the slowest, the median and the quickest rank of all: the slowest, the median
/// and the quickest rank. Ascending. `work`: by rank the seconds in which it did not wait for others.
std::vector<ShownRank> shown_of_many(const NodeLayout& layout, std::span<const double> work);
std::vector<ShownRank> all_shown(int ranks);

/// Collective. Writes the spans of the ranks in `shown`, which are the same on all ranks and begin with rank 0. What
/// else has the name of the file gets another, with a warning. Throws Error(output) on all ranks alike.
void write_trace_json(Comm& comm, const std::string& path, const std::vector<TraceSpan>& spans,
                      std::span<const ShownRank> shown);

}  // namespace nanorun
