// The summary of a run; tests/fault has those of whole runs.

#include "src/run/summary.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/measure/trace_columns.hpp"

namespace nanorun {
namespace {

using nlohmann::json;

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

TEST(Summary, HasTheTimeOfAFixedNumberOfTokens) {
  RunSummary summary{};
  EXPECT_FALSE(json::parse(summary_json(summary)).contains("seconds_per_20m_tokens")) << "no step was made";
  EXPECT_EQ(closing_lines(summary).find("20m"), std::string::npos);
  summary.progress.tokens = 4'000'000;
  summary.progress.train_seconds = 8;
  EXPECT_EQ(json::parse(summary_json(summary))["seconds_per_20m_tokens"], 40) << "of all steps";
  summary.run_tokens = 1'000'000;
  summary.run_seconds = 4;
  EXPECT_EQ(json::parse(summary_json(summary))["seconds_per_20m_tokens"], 80) << "of the steps of this start";
  EXPECT_NE(closing_lines(summary).find("\nFOM tokens_per_second 250000\nFOM seconds_per_20m_tokens 80\n"),
            std::string::npos);
}

TEST(Summary, HasTheUtilisationWhereItIsKnown) {
  RunSummary summary{};
  EXPECT_FALSE(json::parse(summary_json(summary)).contains("mfu"));
  EXPECT_EQ(closing_lines(summary).find("mfu"), std::string::npos);
  summary.mfu = 0.25;
  EXPECT_EQ(json::parse(summary_json(summary))["mfu"], 0.25);
  EXPECT_NE(closing_lines(summary).find("\nFOM mfu 0.25\n"), std::string::npos);
  summary.mfu_6nd = 0.125;
  summary.peak_flops = 1.5e15;
  EXPECT_EQ(json::parse(summary_json(summary))["mfu_6nd"], 0.125);
  EXPECT_EQ(json::parse(summary_json(summary))["peak_flops"], 1.5e15);
  const std::string lines = closing_lines(summary);
  EXPECT_NE(lines.find("\nFOM mfu_6nd 0.125\n"), std::string::npos);
  EXPECT_NE(lines.find("\nMFU 25.0% with attention, 12.5% by 6 N D, of the 1500.0 TFLOP/s of all GPUs\n"),
            std::string::npos);
}

TEST(Summary, HasTheEnergyWhereItIsKnown) {
  RunSummary summary{};
  summary.energy.steps = 10;
  summary.energy.tokens = 5000;
  EXPECT_FALSE(json::parse(summary_json(summary)).contains("energy_joules"));
  EXPECT_EQ(closing_lines(summary).find("joules"), std::string::npos);
  summary.energy.processors = 200;
  json found = json::parse(summary_json(summary));
  EXPECT_EQ(found["energy_source"], "processors: RAPL");
  EXPECT_EQ(found["energy_joules"], 200);
  EXPECT_EQ(found["joules_per_step"], 20);
  EXPECT_EQ(found["joules_per_token"], 0.04);
  EXPECT_EQ(found["tokens_per_wh"], 90'000);
  EXPECT_FALSE(found.contains("processor_joules"));
  summary.energy.gpus = 1000;
  found = json::parse(summary_json(summary));
  EXPECT_EQ(found["energy_source"], "GPUs: power");
  EXPECT_EQ(found["energy_joules"], 1000);
  EXPECT_EQ(found["processor_joules"], 200);
  summary.energy.gpus_counted = true;
  EXPECT_EQ(json::parse(summary_json(summary))["energy_source"], "GPUs: counters");
  EXPECT_NE(closing_lines(summary).find("\nFOM energy_joules 1000\nFOM joules_per_step 100\nFOM joules_per_token 0.2\n"
                                        "FOM tokens_per_wh 18000\n"),
            std::string::npos);
  summary.energy.steps = 0;
  EXPECT_FALSE(json::parse(summary_json(summary)).contains("energy_joules")) << "the first step does not count";
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

TEST(Summary, HasGpusOfGroupsOnManyRanks) {
  RunSummary summary{};
  summary.gpus.assign(4096, {1900, 1950, 600, 690, {{"sw_power_cap", 3}, {"hw_slowdown", 1}}});
  summary.gpus[17] = {1200, 1300, 400, 420, {{"hw_slowdown", 9}}};
  const TraceColumns columns(TraceRanks::automatic, NodeLayout::consecutive(4096, 8));
  summary.gpu_groups = group_gpus(summary.gpus, columns);
  const std::string text = summary_json(summary);
  EXPECT_LT(text.size(), 150000u);
  const json gpus = json::parse(text)["gpus"];
  ASSERT_EQ(gpus.size(), 64u);
  const json first = {{"first_rank", 0},
                      {"ranks", 64},
                      {"min_clock_mhz", 1200},
                      {"avg_clock_mhz", 1950 - 650.0 / 64},
                      {"avg_power_watts", 600 - 200.0 / 64},
                      {"max_power_watts", 690},
                      {"throttled", {{"hw_slowdown", 72}, {"sw_power_cap", 189}}},
                      {"slowest", {{"rank", 17}, {"avg_clock_mhz", 1300}}},
                      {"fastest", {{"rank", 0}, {"avg_clock_mhz", 1950}}}};
  for (const auto& [key, value] : first.items()) EXPECT_EQ(gpus[0][key], value) << key;
  const json slowed = gpus[0]["throttled_ranks"]["hw_slowdown"];
  EXPECT_EQ(slowed["ranks"], 64);
  EXPECT_EQ(slowed["most"].size(), 4u);
  EXPECT_EQ(slowed["most"][0], (json{{"rank", 17}, {"looks", 9}}));
  EXPECT_EQ(gpus[63]["first_rank"], 4032);
}

TEST(Summary, HasWhatRanksHaveSentInAStep) {
  RunSummary summary{};
  summary.ranks = 4;
  summary.sent = {{30, 4000}, {10, 2005}};
  EXPECT_FALSE(json::parse(summary_json(summary)).contains("sent"));  // no step
  summary.first_step = 2;
  summary.progress.step = 12;
  const json expected = {{"inside", {{"messages", 3}, {"bytes", 400}}},
                         {"between", {{"messages", 1}, {"bytes", 200.5}}}};
  EXPECT_EQ(json::parse(summary_json(summary))["sent"], expected);
  summary.ranks = 1;
  EXPECT_FALSE(json::parse(summary_json(summary)).contains("sent"));
}

TEST(Summary, SaysWhatARankHadOfAProcessor) {
  RunSummary summary{};
  EXPECT_FALSE(json::parse(summary_json(summary)).contains("processor_share"));
  summary.processor_share = 0.75;
  EXPECT_EQ(json::parse(summary_json(summary))["processor_share"], 0.75);
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
  summary.provenance.command = "nanorun train \xff.toml";  // no UTF-8
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
