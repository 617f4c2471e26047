// Preloaded into the ranks of tests: a rank that waits for others sleeps, where Open MPI would only yield its core, and
// take it from ranks that compute when cores are few.

#include <algorithm>
#include <chrono>
#include <thread>

namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

constexpr microseconds same_wait{20};  ///< calls that follow sooner belong to the same wait
constexpr microseconds longest{500};   ///< sleep

thread_local steady_clock::time_point began, last;  ///< of this wait: the first call, and the end of the last one

}  // namespace

/// In place of that of the C library. Sleeps for a quarter of the time that the wait has lasted.
extern "C" int sched_yield() noexcept {
  const steady_clock::time_point now = steady_clock::now();
  if (now - last > same_wait) began = now;
  std::this_thread::sleep_for(std::clamp<steady_clock::duration>((now - began) / 4, microseconds(1), longest));
  last = steady_clock::now();
  return 0;
}
