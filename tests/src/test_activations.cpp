// The memory of activations: what sequences of each length take.

#include "src/activations.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "src/config.hpp"

namespace nanorun {
namespace {

Config record21() {
  std::ifstream file(NANORUN_SOURCE_DIR "/inputs/record21.toml");
  return parse_deck({std::istreambuf_iterator<char>(file), {}}, "record21.toml", {});
}

std::size_t bytes(const Config& config, int length, bool training) {
  kernels::WorkspaceCutter cutter({});
  Activations<float>(config, length, training, cutter);
  return cutter.used();
}

TEST(Activations, GrowInProportionToTheLength) {
  const Config config = record21();
  for (const bool training : {true, false}) {
    const auto grown = static_cast<double>(bytes(config, 262144, training) - bytes(config, 131072, training));
    EXPECT_NEAR((bytes(config, 131072, training) - bytes(config, 65536, training)) / grown, 0.5, 1e-6) << training;
    EXPECT_NEAR((bytes(config, 65536, training) - bytes(config, 49152, training)) / grown, 0.125, 1e-6) << training;
    EXPECT_NEAR(bytes(config, 131072, training) / grown, 1, 0.01) << training;
  }
}

TEST(Activations, OfEvaluationTakeOneBlockAndTheSkips) {
  const Config config = record21();
  // In units of d numbers a token: x0 and the final norm, the outputs of 6 encoder blocks, and of one block x, norm,
  // QKV, mixed values, attention, norm and the hidden units of ratio 4. Beside them stand scalars of a few heads and
  // rows, and the logits of a part of the tokens.
  const std::size_t numbers = 2 + 6 + (1 + 1 + 3 + 1 + 1 + 1 + 4);
  EXPECT_LT(bytes(config, 262144, false), 1.01 * 262144 * numbers * config.model.width * sizeof(float));
  EXPECT_LT(bytes(config, 262144, false) / 262144, bytes(config, 49152, true) / 49152 / 4);
}

}  // namespace
}  // namespace nanorun
