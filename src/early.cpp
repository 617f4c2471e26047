#include "src/early.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace nanorun {

namespace {

constexpr std::array<int, 4> stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGUSR2};

std::atomic<int> first_signal{0};
std::atomic<std::int64_t> first_time{0};  ///< of the first signal, in ns
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

[[noreturn]] void end_by(int signal) {
  constexpr char text[] = "nanorun: a second signal ends the program at once\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, sizeof(text) - 1);
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, signal);
  ::sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
  ::raise(signal);
  ::_exit(128 + signal);  // the first process of a container outlives default actions
}

extern "C" void note_signal(int signal) {
  constexpr std::int64_t second = 1'000'000'000;
  const int error = errno;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t time = now.tv_sec * second + now.tv_nsec;
  std::int64_t first = 0;
  if (first_time.compare_exchange_strong(first, time)) {
    first_signal = signal;
  } else if (signal != SIGUSR2 && time - first >= second) {
    end_by(signal);  // from here, since the program may hang
  }
  errno = error;
}

/// Not for what their names promise: as closed ones do, they refuse that.
void open_standard_descriptors() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    ::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // gets the lowest number that is free
  }
}

}  // namespace

void prepare_process(int, char**, char**) {
  open_standard_descriptors();
  note_signals();
}

void note_signals() {
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : stop_signals) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    const bool may_be_ignored = signal == SIGINT || signal == SIGHUP;
    if (!may_be_ignored || before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

int noted_signal() { return first_signal; }

void heed_signals() {
  for (const int signal : stop_signals) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler == note_signal) ::signal(signal, SIG_DFL);
  }
  if (const int signal = first_signal; signal != 0) ::raise(signal);
}

}  // namespace nanorun
