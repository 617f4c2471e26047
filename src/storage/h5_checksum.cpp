// Checksums of large tensors.

#include <sched.h>

#include <algorithm>
#include <future>
#include <numeric>

#include "src/storage/h5.hpp"

namespace nanorun::h5 {

namespace {

constexpr std::size_t part = 1 << 18;  // elements: a tenth of a millisecond for one thread

/// Threads that a rank takes for checksums: on the processors that the launcher has left it.
std::size_t most_threads() {
  constexpr int most = 16;  // these read faster than the memory of a host delivers
  cpu_set_t processors;
  const int usable = ::sched_getaffinity(0, sizeof processors, &processors) == 0 ? CPU_COUNT(&processors) : 1;
  return static_cast<std::size_t>(std::clamp(usable, 1, most));
}

}  // namespace

std::uint64_t checksum_by_threads(std::span<const float> data, std::uint64_t first) {
  static const std::size_t most = most_threads();
  const std::size_t threads = std::clamp<std::size_t>(data.size() / part, 1, most);
  const auto sum_of = [&](std::size_t thread) {
    const std::size_t begin = data.size() * thread / threads, end = data.size() * (thread + 1) / threads;
    return checksum(data.subspan(begin, end - begin), first + begin);
  };
  // Where no thread can be started, this one does its work in the end.
  constexpr auto either = std::launch::async | std::launch::deferred;
  std::vector<std::future<std::uint64_t>> others;
  for (std::size_t thread = 1; thread < threads; ++thread) {
    others.push_back(std::async(either, sum_of, thread));
  }
  return std::accumulate(others.begin(), others.end(), sum_of(0),
                         [](std::uint64_t sum, std::future<std::uint64_t>& other) { return sum + other.get(); });
}

}  // namespace nanorun::h5
