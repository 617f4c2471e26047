#pragma once
// Reasons to stop early: SIGTERM or SIGUSR2 to any rank, the walltime limit, a stop file, a step named in the deck.
// A rank only notes what it sees; the ranks agree on it in the reduction that ends every step.

#include <string>

#include "src/config.hpp"

namespace nanorun {

/// Larger values win when ranks see different reasons.
enum class StopReason : int { none, step, file, walltime, user_signal, terminate, count };
const char* stop_reason_text(StopReason reason);

/// Installs the signal handlers for its lifetime; one instance at a time.
class StopMonitor {
 public:
  /// `stop_file` is looked for at most once a second, and only where `watches_file`.
  StopMonitor(const StopConfig& config, std::string stop_file, bool watches_file);
  ~StopMonitor();
  StopMonitor(const StopMonitor&) = delete;
  StopMonitor& operator=(const StopMonitor&) = delete;

  /// What this rank sees after `steps_done` updates, `seconds` after the program started.
  StopReason poll(long steps_done, double seconds);

 private:
  const StopConfig& config_;
  std::string stop_file_;
  bool watches_file_;
  double next_look_ = 0;
};

}  // namespace nanorun
