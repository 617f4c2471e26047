#pragma once
// A check of a file that one rank of a node makes for all of them.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>

#include "src/base/paths.hpp"

namespace nanorun {

/// Lies in memory that the ranks of a node share, at first all zeros. Their threads call it without MPI.
class alignas(64) FileCheck {
 public:
  /// Runs `check`, which throws where the file is not what it should be, unless a rank of this node has already checked
  /// the file in this state. Waits for a rank that checks it now, but not for ever.
  void once(const FileState& state, const std::function<void()>& check);

 private:
  enum class Stage : std::uint32_t { open, begun, passed, failed };
  using Words = std::array<std::uint64_t, sizeof(FileState) / sizeof(std::uint64_t)>;

  std::atomic<Stage> stage_;
  std::array<std::atomic<std::uint64_t>, std::tuple_size_v<Words>> state_;  ///< of the file that has passed
};

}  // namespace nanorun
