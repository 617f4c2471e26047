#pragma once
// Reasons to stop early: a signal to any rank, the walltime limit (walltime.hpp), a stop file, a step named in the
// deck. A rank only notes what it sees; the ranks agree on it before the first step and in every step (agreement.hpp).

#include <string>

#include "src/config/config.hpp"

namespace nanorun {

/// Larger values win when ranks see different reasons.
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
/// Whether the text is that of a reason to stop.
bool is_stop_reason(const std::string& text);

/// The signal that this rank has received.
StopReason received_signal();

class StopMonitor {
 public:
  /// Puts the handlers back that a library has replaced; and output that nobody reads any more ends no run from now on.
  /// `stop_file` is looked for at most once a second, and only where `watches_file`.
  StopMonitor(const StopConfig& config, std::string stop_file, bool watches_file);

  /// What this rank sees between steps, `seconds` after the program started: a signal or the stop file.
  StopReason look(double seconds);
  /// What this rank sees in the step that completes `steps_done` updates, `seconds` after the program started.
  StopReason poll(long steps_done, double seconds);

  /// A line for the log where a signal is found to stop no run, since a library handles it; once, empty otherwise.
  /// Where a library takes one later, a warning says the same.
  std::string taken_signal();

 private:
  bool finds_stop_file(double seconds);
  bool is_stop_file_there();

  const StopConfig& config_;
  std::string stop_file_;
  bool watches_file_;
  double next_look_ = 0;
  bool warned_ = false;
  bool taken_ = false;
};

}  // namespace nanorun
