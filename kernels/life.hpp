#pragma once
// Signs of life of this process, for whoever watches that it does not hang.

#include <atomic>
#include <cstdint>

namespace nanorun::kernels {

struct Life {
  std::atomic<std::uint64_t> signs{0};
  std::atomic<double> max_work{0};  ///< floating-point operations
};
inline Life life;

/// To be called by whatever may take long, at its begin and again and again: a rank counts as hanging when nothing
/// calls this for long. `work`: floating-point operations of a call that another library makes, which shows no signs.
inline void show_life(double work = 0) {
  life.signs.fetch_add(1, std::memory_order_relaxed);
  if (work > life.max_work.load(std::memory_order_relaxed)) life.max_work = work;
}

}  // namespace nanorun::kernels
