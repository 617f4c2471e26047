#pragma once
// Reasons to stop early: a signal to any rank, the walltime limit (walltime.hpp), a stop file, a step named in the
// deck. A rank only notes what it sees. The ranks agree whether to stop before the first step and in every step
// (agreement.hpp).

#include <string>

#include "src/config/config.hpp"

namespace nanorun {

/// If ranks see different reasons, the largest one counts.
enum class StopReason : int {
  none,
  step,
  file,
  walltime,
  user_signal_1,
  user_signal_2,
  hangup,
  interrupt,
  terminate,
  displaced,
  count
};
const char* stop_reason_text(StopReason reason);
/// Whether a text is stop_reason_text() of a reason to stop.
bool is_stop_reason(const std::string& text);

/// The reason that belongs to the signal that this rank has received; none if it has received none.
StopReason received_signal();

class StopMonitor {
 public:
  /// Reinstalls the signal handlers that a library has replaced. The monitor looks for `stop_file` at most once a
  /// second; an empty `stop_file` says that this rank does not look.
  StopMonitor(const StopConfig& config, std::string stop_file);

  /// What this rank sees between steps: a signal or the stop file. `seconds`: since the program started.
  StopReason look(double seconds);
  /// What this rank sees in the step that makes update `steps_done`. `seconds`: since the program started.
  StopReason poll(long steps_done, double seconds);

  /// Returns a line for the log, once, if a library handles a signal, which then does not stop the run; else an empty
  /// text. If a library takes a signal later, look() or poll() warns of it.
  std::string taken_signal();

 private:
  bool finds_stop_file(double seconds);
  bool is_stop_file_there();

  const StopConfig& config_;
  std::string stop_file_;
  double next_look_ = 0;
  bool warned_ = false;
  bool taken_ = false;
};

}  // namespace nanorun
