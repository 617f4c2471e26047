#include "src/stop.hpp"

#include <csignal>
#include <filesystem>

namespace nanorun {

namespace {

volatile std::sig_atomic_t received_signal = 0;

extern "C" void note_signal(int signal) { received_signal = signal; }

}  // namespace

const char* stop_reason_text(StopReason reason) {
  switch (reason) {
    case StopReason::step:
      return "stop.step reached";
    case StopReason::file:
      return "stop file found";
    case StopReason::walltime:
      return "walltime limit reached";
    case StopReason::user_signal:
      return "SIGUSR2 received";
    case StopReason::terminate:
      return "SIGTERM received";
    default:
      return "not stopped";
  }
}

StopMonitor::StopMonitor(const StopConfig& config, std::string stop_file, bool watches_file)
    : config_(config), stop_file_(std::move(stop_file)), watches_file_(watches_file) {
  received_signal = 0;
  std::signal(SIGTERM, note_signal);
  std::signal(SIGUSR2, note_signal);
}

StopMonitor::~StopMonitor() {
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGUSR2, SIG_DFL);
}

StopReason StopMonitor::poll(long steps_done, double seconds) {
  if (received_signal == SIGTERM) return StopReason::terminate;
  if (received_signal == SIGUSR2) return StopReason::user_signal;
  if (config_.walltime_seconds > 0 && seconds >= config_.walltime_seconds) return StopReason::walltime;
  if (watches_file_ && seconds >= next_look_) {
    next_look_ = seconds + 1;
    std::error_code ignored;
    if (std::filesystem::exists(stop_file_, ignored)) return StopReason::file;
  }
  // Only a run that passes the step stops there: the run that continues it goes on.
  if (config_.step > 0 && steps_done == config_.step) return StopReason::step;
  return StopReason::none;
}

}  // namespace nanorun
