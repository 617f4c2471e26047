#pragma once
// Files of the safetensors format: 8 bytes with the size of a header, little-endian; that header, JSON, which gives
// each tensor's type, shape and place; the values, without gaps.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nanorun {

struct SafeTensor {
  std::string name;
  std::string type;                  ///< "F32", "BF16", ...
  std::vector<std::uint64_t> shape;  ///< at most 8 extents
  std::uint64_t begin = 0;           ///< of the values, in bytes from the end of the header
  std::uint64_t end = 0;
};

struct SafeTensors {
  std::vector<SafeTensor> tensors;  ///< in the order of their places
  std::uint64_t values = 0;         ///< bytes from the start of the file to the first value
};

/// The first bytes of a file with these tensors.
std::string safetensors_header(const std::vector<SafeTensor>& tensors);

/// Reads what a file says of its tensors. Throws Error(data), one line, unless they fill the file without gaps and
/// overlaps, each as many bytes as its type and shape say. Memory is bounded whatever the file holds.
SafeTensors read_safetensors(const std::string& path);

/// The values of a tensor of type F32 or BF16, of which `values` has as many. Throws Error(data).
void read_safetensor(const std::string& path, const SafeTensors& file, const SafeTensor& tensor,
                     std::span<float> values);

}  // namespace nanorun
