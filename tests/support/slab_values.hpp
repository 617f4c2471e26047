#pragma once
// Values by which the tests of checkpoints recognise each element of a run's tensors.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/model/params.hpp"

namespace nanorun {

/// Element i of a dataset in a run of the given seed; most are no bf16.
inline float value(const std::string& dataset, std::uint64_t i, int seed = 0) {
  const std::uint64_t hash = std::hash<std::string>{}(dataset) + 1000003 * i + static_cast<std::uint64_t>(seed);
  return static_cast<float>(hash * 0x9E3779B97F4A7C15 >> 40) * 0x1p-20f - 4;
}

inline void fill(const std::vector<Slab<float>>& slabs, int seed = 0) {
  for (const Slab<float>& slab : slabs) {
    for (std::size_t i = 0; i < slab.data.size(); ++i) {
      slab.data[i] = value(slab.dataset, slab.first_row * slab.cols + i, seed);
    }
  }
}

}  // namespace nanorun
