#pragma once
// The deck's lists of layers, such as model.xsa_layers.

#include <algorithm>
#include <vector>

namespace nanorun {

/// Whether a list names a layer.
inline bool names(const std::vector<int>& layers, int layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

}  // namespace nanorun
