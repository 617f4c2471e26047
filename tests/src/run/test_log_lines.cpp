// Lines of the log; tests/fault has those of whole runs.

#include "src/run/log_lines.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/optimizer/hyperparameters.hpp"

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

TEST(StepLine, HasTheNormWhereGradientsAreClipped) {
  StepMetrics clipped = step;
  clipped.gradient_norm = 1.23456;
  clipped.clip_factor = 1;
  EXPECT_EQ(format_step(clipped, 200, 153),
            "step    59/200  loss 2.32856  norm 1.23  window  256  1095.4 ms/step  7478 tokens/s  ETA 02:33");
  clipped.clip_factor = 0.8;
  EXPECT_EQ(format_step(clipped, 200, 153),
            "step    59/200  loss 2.32856  norm 1.23 clipped  window  256  1095.4 ms/step  7478 tokens/s  ETA 02:33");
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

TEST(SaturationLine, HasTheSharesOfWhatWasCounted) {
  Fp8Saturation counts;
  EXPECT_EQ(format_saturation(10, "MLP", counts), "");
  const auto set = [&](Fp8Count of, double saturated, double all) {
    counts.saturated[static_cast<std::size_t>(of)] = saturated;
    counts.all[static_cast<std::size_t>(of)] = all;
  };
  set(Fp8Count::input, 0, 1e9);
  set(Fp8Count::d_hidden, 123, 1e9);
  set(Fp8Count::d_values, 3, 4);
  EXPECT_EQ(format_saturation(10, "QKV", counts),
            "step    10: saturated in fp8, QKV: input 0, gradient of hidden units 1.2e-07, gradient of values 0.75");
}

TEST(HeadOfTheLog, NamesProductsInFp8) {
  Config config;
  config.fp8.mlp.forward = config.fp8.qkv.forward = Fp8Forward::e4m3;
  config.fp8.mlp.gradient = Fp8Gradient::e5m2;
  const ParameterTable table = parameter_table(config, 1);
  const Provenance provenance{};
  const auto has_line = [&](const std::string& part) {
    const LogHead head{provenance, table, 1, "out", "CPU", "MPI", {}, ""};
    return std::ranges::any_of(opening_lines(config, head),
                               [&](const std::string& line) { return line.find(part) != line.npos; });
  };
  EXPECT_TRUE(has_line(", MLP in fp8, QKV forward in fp8"));
  config.fp8 = {};
  EXPECT_FALSE(has_line("MLP"));
  config.train.mlp_precision = MlpPrecision::fp8;
  EXPECT_TRUE(has_line(", MLP forward in fp8"));
  config = without_fp8(config);
  EXPECT_FALSE(has_line("fp8"));
}

TEST(HeadOfTheLog, NamesTheKernelsOfAGpu) {
  const Config config;
  const ParameterTable table = parameter_table(config, 1);
  const Provenance provenance{};
  const LogHead head{provenance, table, 1, "out", "NVIDIA A100-SXM4-80GB", "NCCL", {}, "", "8.0"};
  const std::vector<std::string> lines = opening_lines(config, head);
  EXPECT_TRUE(std::ranges::any_of(lines, [](const std::string& line) {
    return line.find("device NVIDIA A100-SXM4-80GB (kernels for 8.0), head in ") == 0;
  }));
}

}  // namespace
}  // namespace nanorun
