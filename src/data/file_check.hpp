#pragma once
// A check of a file that one rank of a node makes for all of them, and what it finds.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>

#include "src/base/paths.hpp"

namespace nanorun {

/// Lies in memory that the ranks of a node share, at first all zeros. Their threads call it without MPI.
class alignas(64) FileCheck {
 public:
  /// What `check` finds in the file; it throws where the file is not what it should be. Where a rank of this node has
  /// already checked the file in this state, what that rank has found. Waits for a rank that checks it now, but not for
  /// ever.
  std::uint64_t once(const FileState& state, const std::function<std::uint64_t()>& check);
  /// Says that this rank has checked the file in this state, and what it has found.
  void pass(const FileState& state, std::uint64_t found);

 private:
  enum class Stage : std::uint32_t { open, begun, passed, failed };
  using Words = std::array<std::uint64_t, sizeof(FileState) / sizeof(std::uint64_t)>;

  void keep(const FileState& state, std::uint64_t found);

  std::atomic<Stage> stage_;
  std::atomic<std::uint64_t> found_;
  std::array<std::atomic<std::uint64_t>, std::tuple_size_v<Words>> state_;  ///< of the file that has passed
};

}  // namespace nanorun
