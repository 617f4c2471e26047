// A small model with GPT-2's vocabulary on real text against reference.py: 60 steps from the same start. The text is
// not part of the sources: NANORUN_REAL_TEXT names the speedrun .bin file that README.md describes.

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "src/storage/h5.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/tiny_training.hpp"

namespace nanorun {
namespace {

const std::string folder = NANORUN_GOLDEN_FOLDER "/";

TEST(RealText, LossesFollowTheReferenceWithinOnePercent) {
  const char* bin = std::getenv("NANORUN_REAL_TEXT");
  if (bin == nullptr) GTEST_SKIP() << "NANORUN_REAL_TEXT does not name a .bin file";
  const nlohmann::json golden = nlohmann::json::parse(read_text(folder + "real_text.json"));
  const Config config = parse_deck(read_text(folder + "real_text.toml"), "real_text.toml", {});

  std::vector<kernels::Token> tokens = read_bin_tokens(bin);
  tokens.resize(static_cast<std::size_t>(config.train.steps) * config.train.sequences * config.train.length + 1);
  ASSERT_EQ(h5::checksum<kernels::Token>(tokens, 0), golden.at("data").at("checksum_of_tokens").get<std::uint64_t>())
      << bin << " is not the text that the golden run used";
  const std::vector<double> losses =
      TinyTraining(config, tokens, golden.at("end_of_text"), test_comm()).run(config.train.steps);

  ASSERT_EQ(golden.at("losses").size(), losses.size());
  double worst = 0;
  for (std::size_t s = 0; s < losses.size(); ++s) {
    const double expected = golden.at("losses")[s];
    worst = std::max(worst, std::abs(losses[s] - expected) / expected);
    EXPECT_NEAR(losses[s], expected, 0.01 * expected) << "step " << s;
  }
  if (test_comm().root()) std::printf("largest relative difference: %.1e\n", worst);
}

}  // namespace
}  // namespace nanorun
