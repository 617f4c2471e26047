#pragma once
// A model of four layers, for tests that ask how its tensors are updated.

#include "src/config/config.hpp"

namespace nanorun {

inline Config tiny_config() {
  Config config;
  config.model.vocabulary = 100;
  config.model.width = 16;
  config.model.heads = 2;
  config.model.head_dim = 8;
  config.model.layers = 4;
  config.model.value_embeddings = 1;
  return config;
}

}  // namespace nanorun
