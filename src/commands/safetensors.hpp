#pragma once
// Files of the safetensors format: the size of the header in 8 bytes, little-endian; the header, JSON with the type,
// shape and position of each tensor; the values, without gaps.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nanorun {

struct SafeTensor {
  std::string name;
  std::string type;                  ///< "F32", "BF16", ...
  std::vector<std::uint64_t> shape;  ///< at most 8 extents
  std::uint64_t begin = 0;           ///< where the values begin, in bytes from the end of the header
  std::uint64_t end = 0;
};

struct SafeTensors {
  std::vector<SafeTensor> tensors;  ///< in the order of their values
  std::uint64_t values = 0;         ///< bytes from the start of the file to the first value
};

/// The first bytes of a file with these tensors: the size of the header and the header.
std::string safetensors_header(const std::vector<SafeTensor>& tensors);

/// Reads the header of a file. Throws Error(data), one line, unless the tensors fill the file without gaps and
/// overlaps, each with as many bytes as its type and shape say. Memory is bounded whatever the file holds.
SafeTensors read_safetensors(const std::string& path);

/// Reads the values of a tensor of type F32 or BF16, widened to fp32. `values` has the tensor's size. Throws
/// Error(data).
void read_safetensor(const std::string& path, const SafeTensors& file, const SafeTensor& tensor,
                     std::span<float> values);

}  // namespace nanorun
