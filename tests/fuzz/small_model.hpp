#pragma once
// The model of the fuzz targets that read checkpoints, small but for the number of its layers.

#include "src/config/config.hpp"

namespace nanorun::fuzz {

inline Config small_model(int layers) {
  Config config;
  config.model.vocabulary = 2;
  config.model.width = 4;
  config.model.heads = 1;
  config.model.head_dim = 4;
  config.model.layers = layers;
  config.model.mlp_ratio = 1;
  config.model.value_path = ValuePath::none;
  config.train.length = config.validation.length = 128;
  return config;
}

}  // namespace nanorun::fuzz
