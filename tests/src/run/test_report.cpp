// Lines of the log and the summary; tests/fault has those of whole runs.

#include "src/run/report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace nanorun {
namespace {

using nlohmann::json;

constexpr StepReport report{.step = 59,
                            .steps = 200,
                            .loss = 2.328561,
                            .window = 256,
                            .step_seconds = 1.09541,
                            .tokens_per_second = 7478.4,
                            .seconds_left = 153};

TEST(StepLine, ShowsTheUtilisationWhereItIsKnown) {
  EXPECT_EQ(format_step(report), "step    59/200  loss 2.32856  window  256  1095.4 ms/step  7478 tokens/s  ETA 02:33");
  StepReport known = report;
  known.mfu = 0.42349;
  EXPECT_EQ(format_step(known),
            "step    59/200  loss 2.32856  window  256  1095.4 ms/step  7478 tokens/s  MFU 42.3%  ETA 02:33");
}

TEST(StepLine, NamesAWeightedSum) {
  StepReport weighted = report;
  weighted.weighted = true;
  EXPECT_EQ(format_step(weighted),
            "step    59/200  weighted loss 2.32856  window  256  1095.4 ms/step  7478 tokens/s  ETA 02:33");
}

TEST(Summary, NamesAWeightedSum) {
  RunSummary summary{};
  EXPECT_FALSE(json::parse(summary_json(summary)).contains("final_train_loss_weights"));
  EXPECT_EQ(closing_lines(summary).find("weights"), std::string::npos);
  summary.loss_weights = 1.75;
  EXPECT_EQ(json::parse(summary_json(summary))["final_train_loss_weights"], 1.75);
  EXPECT_NE(closing_lines(summary).find("\nFOM final_train_loss_weights 1.75"), std::string::npos);
}

TEST(Summary, WarnsOfValidationsThatTakeMoreThanAThirdOfTheTime) {
  RunSummary summary{};
  summary.phases.avg[static_cast<int>(Phase::forward)] = 12;
  summary.phases.avg[static_cast<int>(Phase::checkpoint)] = 8;
  summary.phases.avg[static_cast<int>(Phase::validation)] = 10;  // exactly a third
  EXPECT_FALSE(json::parse(summary_json(summary)).contains("warnings"));
  EXPECT_EQ(closing_lines(summary).find("warning"), std::string::npos);
  summary.phases.avg[static_cast<int>(Phase::validation)] = 12.5;
  const std::string warning =
      "validation took 12.5 s, 38 % of the time: raise validation.every or lower validation.tokens";
  EXPECT_EQ(json::parse(summary_json(summary))["warnings"], json{warning});
  const std::string lines = closing_lines(summary);
  EXPECT_EQ(lines.substr(lines.rfind('\n') + 1), "warning: " + warning);
}

TEST(ValidationLine, ShowsTimeAndMeanStep) {
  EXPECT_EQ(format_validation(50, 200, 2.259012, 52.3),
            "validation at step 50/200: loss 2.25901  train time 52.3 s  1046.0 ms/step");
  EXPECT_EQ(format_validation(0, 200, 10.8, 0), "validation at step 0/200: loss 10.80000  train time 0.0 s");
}

TEST(Summary, HasTheUtilisationWhereItIsKnown) {
  RunSummary summary{};
  EXPECT_FALSE(json::parse(summary_json(summary)).contains("mfu"));
  EXPECT_EQ(closing_lines(summary).find("mfu"), std::string::npos);
  summary.mfu = 0.25;
  EXPECT_EQ(json::parse(summary_json(summary))["mfu"], 0.25);
  EXPECT_NE(closing_lines(summary).find("\nFOM mfu 0.25\n"), std::string::npos);
}

TEST(Summary, HasTheGpusWhereSomebodyLookedAtThem) {
  RunSummary summary{};
  EXPECT_FALSE(json::parse(summary_json(summary)).contains("gpus"));
  EXPECT_EQ(closing_lines(summary).find("GPUs"), std::string::npos);
  summary.gpus = {{1900, 1950, 600, 690, {}}, {1200, 1300, 400, 420, {{"hw_thermal_slowdown", 9}}}};
  summary.gpu_looks = 12;
  const json found = json::parse(summary_json(summary));
  EXPECT_EQ(found["gpu_looks"], 12);
  ASSERT_EQ(found["gpus"].size(), 2u);
  EXPECT_EQ(found["gpus"][0]["throttled"], json::object());
  EXPECT_EQ(found["gpus"][1], (json{{"min_clock_mhz", 1200},
                                    {"avg_clock_mhz", 1300},
                                    {"avg_power_watts", 400},
                                    {"max_power_watts", 420},
                                    {"throttled", {{"hw_thermal_slowdown", 9}}}}));
  EXPECT_NE(closing_lines(summary).find("\nGPUs: mean SM clock 1300 MHz on rank 1 to"), std::string::npos);
}

TEST(Summary, SaysWhatDataItIsOf) {
  RunSummary summary{};
  EXPECT_FALSE(json::parse(summary_json(summary)).contains("data"));
  summary.train_data = {2, 300, 0x1f};
  const json expected = {{"shards", 2}, {"tokens", 300}, {"checksum", "000000000000001f"}};
  EXPECT_EQ(json::parse(summary_json(summary))["data"], (json{{"train", expected}}));
  summary.validation_data = summary.train_data;
  EXPECT_EQ(json::parse(summary_json(summary))["data"], (json{{"train", expected}, {"validation", expected}}));
}

TEST(Summary, SaysWhereTheFiguresComeFrom) {
  RunSummary summary{};
  summary.provenance.program = {{"version", "0.2.0"}, {"mpi", "Open MPI v4.1.4"}};
  summary.provenance.ranks_by_host = {{"node1", 4}, {"node2", 2}};
  summary.provenance.ranks_by_device = {{"NVIDIA H200", 6}};
  summary.provenance.command = "nanorun train \xff.toml";  // which is no UTF-8
  summary.provenance.started = "2026-11-22T13:05:09+01:00";
  json expected = {{"version", "0.2.0"},
                   {"mpi", "Open MPI v4.1.4"},
                   {"hosts", {{"node1", 4}, {"node2", 2}}},
                   {"devices", {{"NVIDIA H200", 6}}},
                   {"command", "nanorun train \ufffd.toml"},
                   {"started", "2026-11-22T13:05:09+01:00"}};
  EXPECT_EQ(json::parse(summary_json(summary))["provenance"], expected);
  summary.provenance.job = "7";
  expected["job"] = "7";
  EXPECT_EQ(json::parse(summary_json(summary))["provenance"], expected);
}

}  // namespace
}  // namespace nanorun
