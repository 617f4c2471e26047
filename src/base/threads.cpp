#include "src/base/threads.hpp"

#include <sched.h>

#include <algorithm>
#include <future>
#include <vector>

namespace nanorun {

namespace {

/// The processors that the launcher has left this process.
std::size_t most_threads() {
  constexpr int most = 16;  // these take what the memory of a host delivers
  cpu_set_t processors;
  const int usable = ::sched_getaffinity(0, sizeof processors, &processors) == 0 ? CPU_COUNT(&processors) : 1;
  return static_cast<std::size_t>(std::clamp(usable, 1, most));
}

}  // namespace

void in_parts(std::size_t count, std::size_t least, const std::function<void(std::size_t, std::size_t)>& body) {
  static const std::size_t most = most_threads();
  const std::size_t threads = std::clamp<std::size_t>(count / std::max<std::size_t>(least, 1), 1, most);
  const auto part = [&](std::size_t thread) { body(count * thread / threads, count * (thread + 1) / threads); };
  // A part that no thread has taken is done in get().
  constexpr auto either = std::launch::async | std::launch::deferred;
  std::vector<std::future<void>> others;
  for (std::size_t thread = 1; thread < threads; ++thread) others.push_back(std::async(either, part, thread));
  part(0);
  for (std::future<void>& other : others) other.get();
}

}  // namespace nanorun
