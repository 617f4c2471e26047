#pragma once
// Brings the rows of all ranks to rank 0. Where ranks form groups, the lowest rank of each gathers its group's, and
// rank 0 what these ranks make of them. Each gather is of as many numbers from all of its ranks.

#include <memory>

#include "src/comm/comm.hpp"
#include "src/measure/trace_columns.hpp"
#include "src/measure/trace_rows.hpp"

namespace nanorun {

class TraceGather {
 public:
  /// Collective. The communicator outlives it.
  TraceGather(Comm& comm, const TraceColumns& columns);

  const TraceColumns& columns() const { return columns_; }
  /// Collective. `own`: rows whose only column is this rank. On rank 0 the rows with all columns; elsewhere without.
  TraceRows gather(const TraceRows& own);

 private:
  void gather_steps(const TraceRows& own, std::size_t first, std::size_t last, TraceRows& all);

  Comm& comm_;
  TraceColumns columns_;
  std::unique_ptr<Comm> group_, leaders_;  ///< null where ranks form no groups; `leaders_` also on all but the leaders
};

}  // namespace nanorun
