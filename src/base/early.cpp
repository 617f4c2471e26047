#include "src/base/early.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "src/base/error.hpp"

namespace nanorun {

namespace {

constexpr std::array<int, 5> stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

std::atomic<int> first_signal{0};
std::atomic<std::int64_t> first_time{0};  ///< when the first signal other than SIGUSR1 and SIGUSR2 came, in ns
std::atomic<bool> usr1_is_taken{false};
std::array<bool, stop_signals.size()> ignored_at_start{};
bool knows_ignored = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

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
  if (signal == SIGUSR1 && usr1_is_taken) return;
  const int error = errno;
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t time = now.tv_sec * second + now.tv_nsec;
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  std::int64_t first = 0;
  if (signal != SIGUSR1 && signal != SIGUSR2 && !first_time.compare_exchange_strong(first, time) &&
      time - first >= second)
    end_by(signal);  // from here, since the program may hang
  errno = error;
}

/// Whether a library has installed the handler. sa_handler and sa_sigaction share one address.
bool is_of_library(const struct sigaction& action) {
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN && action.sa_handler != note_signal;
}

/// Opens closed standard descriptors in the wrong direction, so that reading from standard input, and writing to the
/// others, still fail as on closed ones.
void open_standard_descriptors() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    ::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // gets the lowest number that is free
  }
}

/// The number in an environment variable; 0 where there is none.
int number_in(char** environment, const char* name) {
  const std::size_t size = std::strlen(name);
  for (; *environment != nullptr; ++environment) {
    if (std::strncmp(*environment, name, size) == 0 && (*environment)[size] == '=') {
      return std::atoi(*environment + size + 1);
    }
  }
  return 0;
}

/// Threads of the program once OpenBLAS, which starts its own when it is loaded, is there. Other BLAS start none.
int blas_threads(char** environment) {
  if (::dlsym(RTLD_DEFAULT, "openblas_get_config") == nullptr) return 1;
  cpu_set_t cores;
  const int max_threads = ::sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
  for (const char* name : {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"}) {
    if (const int threads = number_in(environment, name); threads > 0) return std::min(threads, max_threads);
  }
  return max_threads;
}

constexpr rlim_t mebibyte = 1 << 20;

/// The soft limit in MiB; RLIM_INFINITY where there is none.
template <class Resource>
rlim_t limit_of(Resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return RLIM_INFINITY;
  return limit.rlim_cur / mebibyte;
}

template <class... Values>
[[noreturn]] void refuse(const char* format, Values... values) {
  char text[256];
  const int size = std::snprintf(text, sizeof(text), format, values...);
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, size);
  ::_exit(static_cast<int>(ExitCode::internal));
}

/// OpenBLAS starts its threads when it is loaded, with a buffer each, and asks for ever for one that it does not get.
void require_address_space(char** environment) {
  constexpr rlim_t program = 512, training = 256, thread = 144;  // MiB, as measured and rounded up
  const int threads = blas_threads(environment);
  const rlim_t further_threads = (threads - 1) * thread;
  const auto require = [&](auto resource, const char* name, const char* command) {
    const rlim_t limit = limit_of(resource);
    if (limit >= program + further_threads) return;
    refuse(
        "nanorun: the limit on %s (%s) is %llu MiB; the program and its %d BLAS threads need %llu MiB to train a "
        "small model, and %llu MiB to start: raise the limit%s\n",
        name, command, static_cast<unsigned long long>(limit), threads,
        static_cast<unsigned long long>(program + further_threads + training),
        static_cast<unsigned long long>(program + further_threads),
        threads > 1 ? " or set OPENBLAS_NUM_THREADS=1" : "");
  };
  require(RLIMIT_AS, "address space", "ulimit -v");
  require(RLIMIT_DATA, "data", "ulimit -d");
}

/// Open MPI gives each rank a file of 4 MiB and a little in memory, which counts too.
void require_file_size() {
  constexpr rlim_t needed = 8;
  const rlim_t limit = limit_of(RLIMIT_FSIZE);
  if (limit >= needed) return;
  refuse("nanorun: the file size limit (ulimit -f) is below %llu MiB, which MPI needs to start: raise the limit\n",
         static_cast<unsigned long long>(needed));
}

/// MPI ends without a word where it cannot open a file. A hard limit may allow what the soft one does not.
void require_open_files() {
  constexpr rlim_t needed = 64, usual = 1024;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= usual) return;
  limit.rlim_cur = std::min(limit.rlim_max, usual);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= needed) return;
  refuse("nanorun: the limit on open files (ulimit -n) is %llu, but MPI needs %llu to start: raise the limit\n",
         static_cast<unsigned long long>(limit.rlim_cur), static_cast<unsigned long long>(needed));
}

/// A write beyond the file size limit, or to a pipe that nobody reads, then fails like any other.
void ignore_signals_of_writes() {
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &action, nullptr);
  ::sigaction(SIGPIPE, &action, nullptr);
}

}  // namespace

void prepare_process(int, char**, char** environment) {
  open_standard_descriptors();
  note_signals();
  ignore_signals_of_writes();
  require_address_space(environment);
  require_file_size();
  require_open_files();
}

void note_signals() {
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  const bool first_call = !std::exchange(knows_ignored, true);
  for (std::size_t i = 0; i < stop_signals.size(); ++i) {
    const int signal = stop_signals[i];
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (first_call) ignored_at_start[i] = before.sa_handler == SIG_IGN;
    if (ignored_at_start[i]) {
      ::signal(signal, SIG_IGN);  // a library may have set a handler of its own
      continue;
    }
    if (signal == SIGUSR1 && is_of_library(before)) continue;
    ::sigaction(signal, &action, nullptr);
  }
}

int noted_signal() { return first_signal; }

TakenSignal taken_signal() {
  for (const int signal : stop_signals) {
    struct sigaction now {};
    ::sigaction(signal, nullptr, &now);
    if (!is_of_library(now)) continue;
    if (signal == SIGUSR1) usr1_is_taken = true;
    return {signal, reinterpret_cast<void*>(now.sa_handler)};
  }
  return {};
}

void heed_signals() {
  for (const int signal : stop_signals) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler == note_signal) ::signal(signal, SIG_DFL);
  }
  if (const int signal = first_signal; signal != 0) ::raise(signal);
}

double seconds_of_process() {
  char text[1024];
  const int file = ::open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t size = ::read(file, text, sizeof(text) - 1);
  ::close(file);
  if (size <= 0) return 0;
  text[size] = 0;
  // The name, in parentheses, may hold any character. The start is the 20th field after it, in clock ticks.
  const char* field = std::strrchr(text, ')');
  for (int i = 0; i < 20 && field != nullptr; ++i) field = std::strchr(field + 1, ' ');
  const long ticks = ::sysconf(_SC_CLK_TCK);
  timespec now{};
  if (field == nullptr || ticks <= 0 || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  // Rounded up, since what is older than the process must not seem younger.
  const double start = static_cast<double>(std::strtoll(field, nullptr, 10) + 1) / static_cast<double>(ticks);
  const double seconds = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - start;
  constexpr double hour = 3600;  // no program is loaded for so long: the clocks are not of one kind
  return seconds > 0 && seconds < hour ? seconds : 0;
}

}  // namespace nanorun
