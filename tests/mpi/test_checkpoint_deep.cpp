// Checkpoints of many tensors: of a model of 512 layers.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/saved_training.hpp"

namespace nanorun {
namespace {

Config deep_config() {
  Config config = small_config(16);
  config.model.layers = 512;
  config.model.layers_without_attention = {};
  config.model.value_path = ValuePath::none;
  return config;
}

Progress deep_progress() {
  Progress progress = progress_at(3);
  progress.mlp_maxima = progress.fp8_maxima = {};
  return progress;
}

std::string save(const std::string& folder) {
  Training run(test_comm(), 3, deep_config());
  return run.checkpoints(folder).save(deep_progress(), run.optimizer.slabs());
}

/// Positions behind the signatures of what describes the file's objects, and as many in all of it.
std::vector<std::size_t> places_to_damage(const std::string& bytes, std::size_t count) {
  std::vector<std::size_t> headers, places;
  for (const char* signature : {"OHDR", "OCHK"}) {
    for (std::size_t at = bytes.find(signature); at != std::string::npos; at = bytes.find(signature, at + 1))
      headers.push_back(at);
  }
  for (std::size_t i = 0; i < count; ++i) {
    places.push_back(headers[i * headers.size() / count] + 4 + 5 * i % 60);
    places.push_back((2 * i + 1) * bytes.size() / (2 * count));
  }
  return places;
}

TEST(DeepCheckpoint, RestoresEveryBit) {
  const SharedFolder folder;
  const std::string path = save(folder / "c");
  verify_checkpoint(test_comm(), path);
  Training run(test_comm(), 0, deep_config());
  ASSERT_TRUE(run.checkpoints(folder / "c").restore(run.optimizer.slabs()).has_value());
  EXPECT_EQ(run.differences(3), 0u);
}

/// NANORUN_FLIPS says how many, for the longer of two tests.
TEST(DeepCheckpoint, AFlippedBitIsFoundOrChangesNothing) {
  const SharedFolder folder;
  const std::string path = save(folder / "c"), sound = read_file(path);
  const char* asked = std::getenv("NANORUN_FLIPS");
  Training run(test_comm(), 0, deep_config());
  run.config.checkpoint.restart = path;
  int found = 0;
  for (const std::size_t place : places_to_damage(sound, asked == nullptr ? 3 : std::atoi(asked))) {
    on_root([&] {
      std::string damaged = sound;
      damaged[place] ^= 1 << place % 8;
      write_file(path, damaged);
    });
    std::string error = "none";
    try {
      run.checkpoints(folder / "c").restore(run.optimizer.slabs());
    } catch (const Error& refusal) {
      EXPECT_EQ(refusal.cause(), Cause::damage) << place << ": " << refusal.what();
      error = refusal.what();
      ++found;
    }
    // Some bytes, as those between objects, say nothing.
    if (error == "none") {
      EXPECT_EQ(run.differences(3), 0u) << place;
    }
  }
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace nanorun
