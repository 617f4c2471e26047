#include "src/run/memory_limit.hpp"

#include <gtest/gtest.h>

#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/tiny_config.hpp"

namespace nanorun {
namespace {

constexpr double GiB = 1 << 30;

TEST(MemoryShortage, NamesTheLargestTermAndTheKey) {
  Config config = tiny_config();
  config.train.length = config.validation.length = 256;
  const auto shortage = [&](const MemoryPlan& memory) { return memory_shortage(config, memory, 2 * GiB); };
  EXPECT_EQ(shortage({.weights = GiB, .activations = GiB}), "");
  EXPECT_EQ(shortage({.weights = 3 * GiB, .activations = GiB}),
            "a rank needs 4 GiB of memory and has 2 GiB; weights take most, 3 GiB: lower model.width or model.layers");
  EXPECT_EQ(shortage({.optimizer = 3 * GiB}),
            "a rank needs 3 GiB of memory and has 2 GiB; optimizer state and scratch "
            "take most, 3 GiB: use more ranks, or lower model.width or model.layers");
  EXPECT_NE(shortage({.collectives = 3 * GiB}).find("buffers of collectives take most, 3 GiB: use fewer nodes"),
            std::string::npos);
  EXPECT_EQ(memory_shortage(config, {.weights = 3 * GiB}, 0), "");  // nobody knows
}

TEST(MemoryShortage, OfActivationsNamesTheKeysThatHelp) {
  Config config = tiny_config();
  config.train.length = config.validation.length = 1024;
  const auto advice = [&] {
    const std::string text = memory_shortage(config, {.activations = GiB}, 1);
    return text.substr(text.rfind(": ") + 2);
  };
  EXPECT_EQ(advice(), "set train.recompute = \"mlp\" or lower train.length");
  config.validation.length = 1025;  // lowering it would gain less
  EXPECT_EQ(advice(), "set train.recompute = \"mlp\" or lower train.length");
  config.validation.length = 1024;
  config.train.recompute = Recompute::mlp;
  EXPECT_EQ(advice(), "set train.recompute = \"block\" or lower train.length");
  config.train.recompute = Recompute::block;
  EXPECT_EQ(advice(), "lower train.length");
  config.train.recompute_layers = {1};
  EXPECT_EQ(advice(), "set train.recompute_layers = [] or lower train.length");
  config.train.recompute_layers = {};
  config.validation.length = 1 << 20;
  EXPECT_EQ(advice(), "lower validation.length");
  config.validation.length = 1024;
  for (const int length : {512, 1024}) config.stage.emplace_back().length = length;
  EXPECT_EQ(advice(), "lower the longest stage.N.length");
}

/// The rank with the least memory decides for all; where it is unknown everywhere, nothing is refused.
TEST(MemoryLimit, RefusesOnAllRanksAlike) {
  Comm& comm = test_comm();
  const Config config = tiny_config();
  const std::uint64_t plenty = std::uint64_t{1} << 50;
  const auto require = [&](std::uint64_t of_last, std::uint64_t of_others) {
    require_memory(comm, config, comm.rank() + 1 == comm.size() ? of_last : of_others);
  };
  EXPECT_NO_THROW(require(plenty, plenty));
  EXPECT_NO_THROW(require(0, 0));
  EXPECT_NO_THROW(require(0, plenty));
  const std::string message = error_on_all_ranks(ExitCode::usage, [&] { require(1 << 20, plenty); });
  EXPECT_NE(message.find(" of memory and has 1 MiB; "), std::string::npos) << message;
}

}  // namespace
}  // namespace nanorun
