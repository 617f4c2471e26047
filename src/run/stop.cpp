#include "src/run/stop.hpp"

#include <dlfcn.h>

#include <csignal>
#include <utility>

#include "src/base/early.hpp"
#include "src/base/error.hpp"
#include "src/base/files.hpp"

namespace nanorun {

const char* stop_reason_text(StopReason reason) {
  switch (reason) {
    case StopReason::step:
      return "stop.step reached";
    case StopReason::file:
      return "stop file found";
    case StopReason::walltime:
      return "walltime limit reached";
    case StopReason::user_signal_1:
      return "SIGUSR1 received";
    case StopReason::user_signal_2:
      return "SIGUSR2 received";
    case StopReason::hangup:
      return "SIGHUP received";
    case StopReason::interrupt:
      return "SIGINT received";
    case StopReason::terminate:
      return "SIGTERM received";
    case StopReason::displaced:
      return "something else lies in place of the run's directory";
    default:
      return "not stopped";
  }
}

bool is_stop_reason(const std::string& text) {
  for (int reason = 1; reason < static_cast<int>(StopReason::count); ++reason) {
    if (text == stop_reason_text(static_cast<StopReason>(reason))) return true;
  }
  return false;
}

namespace {

const char* signal_name(int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGHUP:
      return "SIGHUP";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "SIGUSR2";
  }
}

}  // namespace

StopReason received_signal() {
  switch (noted_signal()) {
    case SIGTERM:
      return StopReason::terminate;
    case SIGINT:
      return StopReason::interrupt;
    case SIGHUP:
      return StopReason::hangup;
    case SIGUSR1:
      return StopReason::user_signal_1;
    case SIGUSR2:
      return StopReason::user_signal_2;
    default:
      return StopReason::none;
  }
}

StopMonitor::StopMonitor(const StopConfig& config, std::string stop_file)
    : config_(config), stop_file_(std::move(stop_file)) {
  note_signals();
}

/// A file system that does not answer is no reason to stop, nor is a file that the next start may not remove.
bool StopMonitor::is_stop_file_there() {
  try {
    if (!has_file(stop_file_, ExitCode::output)) return false;
    if (file_size(stop_file_, ExitCode::output) == 0) return true;
    throw Error(ExitCode::output, stop_file_ + ": is not empty, so it is not taken as a stop file");
  } catch (const Error& error) {
    if (!std::exchange(warned_, true)) warn(fmt::format("{}; only an empty file stops the run", error.what()));
    return false;
  }
}

bool StopMonitor::finds_stop_file(double seconds) {
  if (stop_file_.empty() || seconds < next_look_) return false;
  next_look_ = seconds + 1;
  if (const std::string line = taken_signal(); !line.empty()) warn(line);
  return is_stop_file_there();
}

std::string StopMonitor::taken_signal() {
  if (taken_) return "";
  const TakenSignal taken = nanorun::taken_signal();
  if (taken.signal == 0) return "";
  taken_ = true;
  Dl_info library{};
  const bool known = ::dladdr(taken.handler, &library) != 0 && library.dli_fname != nullptr;
  return fmt::format("{} does not stop this run, since {} handles it: send another signal, or make the stop file",
                     signal_name(taken.signal), known ? name_of(library.dli_fname) : "a library");
}

StopReason StopMonitor::look(double seconds) {
  if (const StopReason signal = received_signal(); signal != StopReason::none) return signal;
  return finds_stop_file(seconds) ? StopReason::file : StopReason::none;
}

StopReason StopMonitor::poll(long steps_done, double seconds) {
  if (const StopReason signal = received_signal(); signal != StopReason::none) return signal;
  if (finds_stop_file(seconds)) return StopReason::file;
  // Only a run that makes this step stops here; the run that continues from it goes on.
  if (config_.step > 0 && steps_done == config_.step) return StopReason::step;
  return StopReason::none;
}

}  // namespace nanorun
