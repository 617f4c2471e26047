// Lines of the log; tests/fault has those of whole runs.

#include "src/run/log_lines.hpp"

#include <gtest/gtest.h>

namespace nanorun {
namespace {

const StepMetrics step{.step = 59, .loss = 2.328561, .seconds = 1.09541, .tokens_per_second = 7478.4, .window = 256};

TEST(StepLine, ShowsTheUtilisationWhereItIsKnown) {
  EXPECT_EQ(format_step(step, 200, 153),
            "step    59/200  loss 2.32856  window  256  1095.4 ms/step  7478 tokens/s  ETA 02:33");
  StepMetrics known = step;
  known.mfu = 0.42349;
  EXPECT_EQ(format_step(known, 200, 153),
            "step    59/200  loss 2.32856  window  256  1095.4 ms/step  7478 tokens/s  MFU 42.3%  ETA 02:33");
}

TEST(StepLine, NamesAWeightedSum) {
  StepMetrics weighted = step;
  weighted.loss_weights = 1.75;
  EXPECT_EQ(format_step(weighted, 200, 153),
            "step    59/200  weighted loss 2.32856  window  256  1095.4 ms/step  7478 tokens/s  ETA 02:33");
}

TEST(ValidationLine, ShowsTimeAndMeanStep) {
  EXPECT_EQ(format_validation(50, 200, 2.259012, 52.3),
            "validation at step 50/200: loss 2.25901  train time 52.3 s  1046.0 ms/step");
  EXPECT_EQ(format_validation(0, 200, 10.8, 0), "validation at step 0/200: loss 10.80000  train time 0.0 s");
}

}  // namespace
}  // namespace nanorun
