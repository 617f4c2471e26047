#pragma once
// A checkpoint that a thread of each rank writes while the ranks train. The threads call neither MPI nor HDF5: where
// HDF5 has laid out the file, a rank's rows have a fixed place.

#include <atomic>
#include <cstdint>
#include <future>
#include <string>
#include <vector>

#include "src/base/slab.hpp"
#include "src/comm/comm.hpp"
#include "src/run/checkpoint_header.hpp"
#include "src/run/checkpoint_rows.hpp"

namespace nanorun {

class BackgroundCheckpoint {
 public:
  /// Collective. Lays out a file of the newest version at `path` and begins to write the slabs. Their data must stay as
  /// they are until finish(); where ops work on host memory, the slabs are what is trained, and are copied here. Throws
  /// Error(checkpoint) on all ranks alike and leaves no file.
  BackgroundCheckpoint(Comm& comm, std::string path, CheckpointHeader header, std::vector<Slab<float>> slabs);
  /// Waits for this rank's thread.
  ~BackgroundCheckpoint() = default;

  const std::string& path() const { return rows_.path; }
  long step() const { return header_.progress.step; }

  /// Whether this rank's rows are on disk, or cannot be written.
  bool done() const;

  /// Collective; call once. Waits for the rows of all ranks, which are then on disk, read back and equal to those in
  /// memory, and completes the file. If that fails, leaves no file and throws Error(checkpoint) on all ranks alike.
  void finish();

 private:
  void keep_copies(std::vector<Slab<float>>& slabs);
  std::vector<std::uint64_t> write_own_rows();
  void wait();

  Comm& comm_;
  CheckpointHeader header_;
  PlacedSlabs rows_;
  std::vector<std::vector<float>> copies_;        ///< the slabs' data, where ops work on host memory
  std::atomic<std::uint64_t> calls_ = 0;          ///< of the system that the thread has made
  std::future<std::vector<std::uint64_t>> sums_;  ///< of the rank's rows; last member, so that the thread ends first
};

}  // namespace nanorun
