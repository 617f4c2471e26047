#pragma once
// Where the tensors of a checkpoint lie in its file, and what binds their checksums.

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/slab.hpp"
#include "src/run/checkpoint_header.hpp"

namespace nanorun {

/// An upper bound of the bytes of a checkpoint with these tensors.
std::uint64_t checkpoint_bytes(const CheckpointHeader& header, const std::vector<Slab<float>>& slabs);

/// Path of the tensor /<group>/<parameter> in a file of a version.
std::string path_in_file(const std::string& dataset, std::uint64_t version);

/// The checksum that the file stores for a tensor whose values have the checksum `sum`. From version 2 on it is bound
/// to the tensor's name and shape and to the step, so that no other tensor of this file or of another can take its
/// place.
std::uint64_t bound_checksum(std::uint64_t sum, const Slab<float>& slab, const CheckpointHeader& header);

/// For one rank. Creates the file with everything but the tensors' values and checksums, and takes its space. Throws
/// Error(checkpoint).
void lay_out(const std::string& path, const CheckpointHeader& header, const std::vector<Slab<float>>& slabs);

/// For one rank. Stores the tensors' checksums, whose values have these `sums`. Throws Error(checkpoint).
void store_checksums(const std::string& path, const CheckpointHeader& header, const std::vector<Slab<float>>& slabs,
                     const std::vector<std::uint64_t>& sums);

/// For one rank. The number of the byte of the file at which each tensor's values begin. They lie there row-major, in
/// little-endian fp32. Throws Error(checkpoint).
std::vector<std::uint64_t> first_bytes(const std::string& path, const CheckpointHeader& header,
                                       const std::vector<Slab<float>>& slabs);

}  // namespace nanorun
