#pragma once
// What the tests of checkpoints share: a training run's tensors, and the files that it saves.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "src/run/checkpoint.hpp"
#include "src/run/learner.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/slab_values.hpp"

namespace nanorun {

inline Config small_config(int width = 32) {
  Config config;
  config.model.vocabulary = 61;
  config.model.width = width;
  config.model.heads = width / 16;
  config.model.head_dim = 16;
  config.model.layers = 4;
  config.model.value_embeddings = 1;
  config.model.layers_without_attention = {2};
  config.train.length = config.validation.length = 128;
  return config;
}

/// A learner filled with values of a seed.
struct Training : Learner<float> {
  Comm& comm;

  Training(Comm& comm, int seed, const Config& config = small_config()) : Learner(config, comm, 0, {}), comm(comm) {
    fill(optimizer.slabs(), seed);
    optimizer.restore();
  }

  Checkpoints checkpoints(const std::string& folder) {
    return {comm, config.checkpoint, folder, "[run]\nname = \"test\"\n", model_fingerprint(table.layout())};
  }

  /// Elements that differ from those of a run of the seed.
  std::size_t differences(int seed) {
    std::size_t count = 0;
    const auto same = [](float a, float b) {
      return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
    };
    for (const Slab<float>& slab : optimizer.slabs()) {
      for (std::size_t i = 0; i < slab.data.size(); ++i) {
        count += !same(slab.data[i], value(slab.dataset, slab.first_row * slab.cols + i, seed));
      }
    }
    optimizer.restore();
    for (const Parameter& p : table.parameters()) {
      for (std::size_t i = 0; i < p.size(); ++i) {
        const float weight = p.offset < table.tensor_size() ? weights.tensors()[p.offset + i]
                                                            : weights.scalars()[p.offset - table.tensor_size() + i];
        count += !same(weight, value("/weights/" + p.name, i, seed));
      }
    }
    return count;
  }
};

inline Progress progress_at(long step) {
  return {step,
          {3, 1000 + static_cast<std::uint64_t>(step), 2},
          12.1,
          1ull << 40,
          3.25,
          {1.1, 2, 3, 4, 5, 6, 7, 8},
          std::vector<double>(40, 1.5)};
}

template <class Body>
std::string checkpoint_error_of(Body&& body) {
  return error_on_all_ranks(ExitCode::checkpoint, body);
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Rank 0 does what changes files; the others wait.
template <class Body>
void on_root(Body&& body) {
  test_comm().barrier();
  if (test_comm().root()) body();
  test_comm().barrier();
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::vector<std::string> names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// Saves checkpoints of the steps, filled with values of seed = step.
inline void save_steps(const std::string& folder, const std::vector<int>& steps) {
  for (const int step : steps) {
    Training run(test_comm(), step);
    run.config.checkpoint.keep = 100;
    run.checkpoints(folder).save(progress_at(step), run.optimizer.slabs());
  }
}

}  // namespace nanorun
