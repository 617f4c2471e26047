#pragma once
// A rank's rows in a checkpoint file, past HDF5 and MPI: where HDF5 has laid out the file, they have a fixed place.
// Functions without a communicator may be called by any thread.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/base/slab.hpp"
#include "src/comm/comm.hpp"
#include "src/run/checkpoint_header.hpp"

namespace nanorun {

/// Slabs, and the numbers of the bytes at which their tensors begin in the file.
struct PlacedSlabs {
  std::string path;
  std::vector<Slab<float>> slabs;
  std::vector<std::uint64_t> first_bytes;
};

/// Slabs of the same rows without memory: reading them only verifies the file.
std::vector<Slab<float>> without_data(std::vector<Slab<float>> slabs);

/// Collective. Where the slabs lie in a file that rank 0 has laid out. Throws Error(checkpoint) on all ranks alike.
PlacedSlabs place_rows(Comm& comm, const std::string& path, const CheckpointHeader& header,
                       std::vector<Slab<float>> slabs);

/// Calls move(i) for each i below `count`, in any order.
using Spread = std::function<void(std::size_t count, const std::function<void(std::size_t)>& move)>;

/// By threads, as in_parts() has them, of which each takes the next number.
void by_threads(std::size_t count, const std::function<void(std::size_t)>& move);

/// Writes the slabs' values in calls of at most 1 MiB. Returns the checksums of the rows of each. Throws
/// Error(checkpoint).
std::vector<std::uint64_t> write_rows(const PlacedSlabs& rows, const Spread& spread);

/// Reads the slabs' values likewise; those of a slab without memory only pass through buffers. Returns the checksums of
/// what is in the file. Throws Error(checkpoint).
std::vector<std::uint64_t> read_rows(const PlacedSlabs& rows, const Spread& spread);

}  // namespace nanorun
