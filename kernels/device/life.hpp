#pragma once
// Signs of life of this process (a heartbeat), for a watchdog.

#include <atomic>
#include <cstdint>

namespace nanorun::kernels {

struct Life {
  std::atomic<std::uint64_t> signs{0};
  std::atomic<double> max_work{0};  ///< floating-point operations
};
inline Life life;

/// Call it at the start of whatever may take long, and repeatedly: a rank that has not called it for long counts as
/// hanging. `work`: floating-point operations of a library call that follows, which shows no signs itself.
inline void show_life(double work = 0) {
  life.signs.fetch_add(1, std::memory_order_relaxed);
  if (work > life.max_work.load(std::memory_order_relaxed)) life.max_work = work;
}

}  // namespace nanorun::kernels
