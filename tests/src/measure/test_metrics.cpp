// metrics.jsonl: its lines, and runs that resume.

#include "src/measure/metrics.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/error_of.hpp"
#include "tests/support/file_size_limit.hpp"
#include "tests/support/temp_folder.hpp"

namespace nanorun {
namespace {

using nlohmann::json;

class MetricsTest : public testing::Test {
 protected:
  std::string path() const { return folder_ / "metrics.jsonl"; }

  std::string text(const std::string& path) const {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string text() const { return text(path()); }
  void put(const std::string& text) const { std::ofstream(path()) << text; }

  std::vector<json> lines() const {
    std::vector<json> lines;
    std::ifstream in(path());
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }
  /// "1 2 v2 3": steps, and validations with a v.
  std::string order() const {
    std::string names;
    for (const json& line : lines()) {
      if (!names.empty()) names += ' ';
      if (line.contains("validation_loss")) names += 'v';
      names += std::to_string(line["step"].get<long>());
    }
    return names;
  }

  /// Steps [first, last], a validation before the first, and one after each second step.
  void write(long first, long last) const {
    Metrics metrics(/*active=*/true);
    metrics.open(path(), first - 1);
    metrics.add(ValidationMetrics{.step = first - 1, .loss = 0.25 * static_cast<double>(first)});
    for (long step = first; step <= last; ++step) {
      metrics.add(StepMetrics{.step = step, .loss = 1.0 / static_cast<double>(step)});
      if (step % 2 == 0) metrics.add(ValidationMetrics{.step = step, .loss = 7});
    }
    metrics.flush();
  }

  TempFolder folder_;
};

TEST_F(MetricsTest, NumbersComeBackAsTheyWere) {
  const StepMetrics step{.step = 17,
                         .loss = 1.0 / 3,
                         .loss_weights = 1.75,
                         .seconds = 0.0123456789012345678,
                         .tokens_per_second = 1e6 / 7,
                         .tokens = (std::uint64_t{1} << 40) + 1,
                         .train_seconds = 1e5 / 3,
                         .mfu = 0.1 + 0.2,
                         .lr_factor = std::numeric_limits<double>::denorm_min(),
                         .momentum = 0.95,
                         .window = 896,
                         .gradient_norm = 1e-300 / 7,
                         .clip_factor = 1.0 / 7,
                         .device_memory = (std::uint64_t{1} << 60) + 1,
                         .gpu_rank = 3,
                         .gpu_clock = 1755,
                         .gpu_power = 650.25,
                         .gpus_throttled = 2};
  Metrics metrics(/*active=*/true);
  metrics.open(path(), 0);
  metrics.add(step);
  metrics.add(ValidationMetrics{.step = 17, .loss = 2.0 / 3, .seconds = 0.375, .tokens = 7, .train_seconds = 1e5 / 3});
  EXPECT_EQ(text(), "") << "before the flush";
  metrics.flush();

  const std::vector<json> found = lines();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], (json{{"step", step.step},
                            {"loss", step.loss},
                            {"loss_weights", 1.75},
                            {"ms", step.seconds * 1e3},
                            {"tokens_per_second", step.tokens_per_second},
                            {"tokens", step.tokens},
                            {"train_seconds", step.train_seconds},
                            {"mfu", *step.mfu},
                            {"lr", step.lr_factor},
                            {"momentum", step.momentum},
                            {"window", step.window},
                            {"gradient_norm", step.gradient_norm},
                            {"clip_factor", 1.0 / 7},
                            {"device_memory_bytes", step.device_memory},
                            {"gpu_rank", 3},
                            {"gpu_clock_mhz", 1755},
                            {"gpu_power_watts", 650.25},
                            {"gpus_throttled", 2},
                            {"deck", 0}}));
  EXPECT_EQ(found[1], (json{{"step", 17},
                            {"validation_loss", 2.0 / 3},
                            {"validation_ms", 375.0},
                            {"tokens", 7},
                            {"train_seconds", step.train_seconds},
                            {"step_ms", step.train_seconds / 17 * 1e3}}));
}

TEST_F(MetricsTest, WhatIsNotKnownIsLeftOut) {
  Metrics metrics(/*active=*/true);
  metrics.open(path(), 0);
  metrics.add(ValidationMetrics{.step = 0, .loss = 5});
  metrics.add(StepMetrics{.step = 1});
  metrics.flush();
  EXPECT_FALSE(lines()[0].contains("step_ms")) << "there was no step";
  EXPECT_FALSE(lines()[1].contains("loss_weights"));
  EXPECT_FALSE(lines()[1].contains("mfu"));
  EXPECT_FALSE(lines()[1].contains("clip_factor"));
  EXPECT_FALSE(lines()[1].contains("device_memory_bytes"));
  EXPECT_FALSE(lines()[1].contains("gpu_rank"));
}

TEST_F(MetricsTest, OtherRanksWriteNothing) {
  Metrics metrics(/*active=*/false);
  metrics.open(path(), 0);
  metrics.add(StepMetrics{.step = 1});
  metrics.flush();
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(MetricsTest, ResumeDropsLaterLines) {
  write(1, 5);
  EXPECT_EQ(order(), "v0 1 2 v2 3 4 v4 5");
  const std::string before = text();
  write(4, 6);
  EXPECT_EQ(order(), "v0 1 2 v2 3 v3 4 v4 5 6 v6");
  const std::size_t kept = before.find("{\"step\":4");
  EXPECT_EQ(text().substr(0, kept), before.substr(0, kept));
}

TEST_F(MetricsTest, RepeatedValidationStandsOnce) {
  write(1, 4);
  write(3, 4);
  EXPECT_EQ(order(), "v0 1 2 v2 3 4 v4");
  EXPECT_EQ(lines()[3]["validation_loss"], 0.75) << "that of the second run";
}

TEST_F(MetricsTest, KeptValidationStaysWhereItIsNotRepeated) {
  write(1, 4);
  Metrics metrics(/*active=*/true);
  metrics.open(path(), 2);
  metrics.add(StepMetrics{.step = 3});
  metrics.add(ValidationMetrics{.step = 3});
  metrics.flush();
  EXPECT_EQ(order(), "v0 1 2 v2 3 v3");
}

TEST_F(MetricsTest, RunFromTheStartBeginsAnew) {
  write(1, 4);
  write(1, 1);
  EXPECT_EQ(order(), "v0 1");
}

TEST_F(MetricsTest, ResumeSaysWhichStepsAreMissing) {
  const auto resumed = [&](long first_step) {
    testing::internal::CaptureStderr();
    Metrics(/*active=*/true).open(path(), first_step);
    return testing::internal::GetCapturedStderr();
  };
  const auto warning = [&](const std::string& steps) {
    return "nanorun: warning: " + path() + ": lacks " + steps + ", which an earlier job could not write\n";
  };
  EXPECT_EQ(resumed(9), "") << "there was no file: the run has begun elsewhere";
  EXPECT_EQ(resumed(9), warning("steps 1 to 9"));
  write(1, 4);
  EXPECT_EQ(resumed(9), warning("steps 5 to 9"));
  EXPECT_EQ(resumed(5), warning("step 5"));
  EXPECT_EQ(resumed(4), "");
  write(10, 11);
  EXPECT_EQ(resumed(11), "") << "it was said before";
  EXPECT_EQ(resumed(2), "");
}

TEST_F(MetricsTest, LineThatWasCutShortIsDropped) {
  write(1, 3);
  const std::string whole = text();
  for (const char* rest : {"{", "{\"st", "{\"step\":4,\"loss\":0.2"}) {
    put(whole + rest);
    Metrics metrics(/*active=*/true);
    metrics.open(path(), 9);
    EXPECT_EQ(text(), whole) << rest;
  }
}

TEST_F(MetricsTest, DamagedFileIsSetAside) {
  int number = 0;
  for (const std::string bad : {"no JSON\n", "{\"loss\":1}\n", "{\"step\":\"2\"}\n", "[1]\n", "{\"step\":1}{\n", "\n",
                                "{\"step\":2}\n{\"step\":1}\n", "bytes without an end"}) {
    put(bad);
    testing::internal::CaptureStderr();
    Metrics metrics(/*active=*/true);
    metrics.open(path(), 9);
    const std::string message = testing::internal::GetCapturedStderr(), aside = path() + "." + std::to_string(++number);
    EXPECT_NE(message.find("metrics.jsonl: line "), std::string::npos) << message;
    EXPECT_NE(message.find(aside), std::string::npos) << message;
    EXPECT_EQ(text(aside), bad);
    EXPECT_EQ(text(), "");
  }
}

TEST_F(MetricsTest, LinesOfOthersAreSetAside) {
  int number = 0;
  for (const std::string others :
       {"{\"step\":1,\"acc\":0.5}\n", "{\"step\":700,\"acc\":1}", "{\"step\":1,\"loss\":2}\n",
        "{\"step\":1,\"loss\":2,\"train_seconds\":1,\"note\":\"good\"}\n",
        "{\"step\":9,\"val\":", "{\"step\":1,\"loss\":2.1,\"train_seconds\":1}\n",
        "{\"step\":1,\"validation_loss\":2.1,\"train_seconds\":[]}\n",
        "{\"step\":1,\"validation_loss\":\"2\",\"train_seconds\":1}\n",
        "{\"step\":1,\"validation_loss\":2,\"train_seconds\":1,\"tokens\":0.5}\n"}) {
    for (const long first_step : {0, 1, 9}) {
      put(others);
      testing::internal::CaptureStderr();
      Metrics(/*active=*/true).open(path(), first_step);
      const std::string message = testing::internal::GetCapturedStderr();
      EXPECT_NE(message.find("metrics.jsonl: line 1 "), std::string::npos) << others << message;
      EXPECT_EQ(text(path() + "." + std::to_string(++number)), others);
    }
  }
  write(1, 2);
  const std::string own = text(), others = own + "{\"step\":700,\"acc\":1}\n";
  put(others);  // behind the lines that a resumed run keeps
  testing::internal::CaptureStderr();
  Metrics(/*active=*/true).open(path(), 1);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("line 5 "), std::string::npos);
  EXPECT_EQ(text(path() + "." + std::to_string(++number)), others);
}

TEST_F(MetricsTest, LinesOfEarlierProgramsAreOwn) {
  const std::string earlier =
      "{\"step\":1,\"loss\":10.8,\"ms\":9.5,\"tokens_per_second\":7,\"train_seconds\":1,\"lr\":1,\"momentum\":0.9,"
      "\"window\":128,\"gradient_norm\":2}\n{\"step\":1,\"validation_loss\":9,\"train_seconds\":1,\"step_ms\":3}\n";
  put(earlier + std::string(512, '\0'));  // as a crash of the node leaves it
  testing::internal::CaptureStderr();
  Metrics(/*active=*/true).open(path(), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(text(), earlier);
}

TEST_F(MetricsTest, NumbersThatAreNotFiniteAreOwn) {
  const double infinite = std::numeric_limits<double>::infinity();
  Metrics metrics(/*active=*/true);
  metrics.open(path(), 0);
  metrics.add(StepMetrics{.step = 1, .loss = 7, .gradient_norm = infinite});
  metrics.add(ValidationMetrics{.step = 1, .loss = infinite, .train_seconds = 1});
  metrics.flush();
  EXPECT_TRUE(is_metrics(path())) << text();
}

TEST_F(MetricsTest, StepsAreToldWithoutTheRun) {
  EXPECT_EQ(recorded_run(path()).step, 0);
  put("");
  EXPECT_EQ(recorded_run(path()).step, 0);
  EXPECT_EQ(metrics_warning(path(), 0), "");
  EXPECT_EQ(metrics_warning(path(), 3), path() + ": lacks steps 1 to 3, which an earlier job could not write");
  put("{\"step\":4}\n");
  EXPECT_EQ(recorded_run(path()).step, 0) << "a user's";
  write(1, 2);
  EXPECT_EQ(recorded_run(path()).step, 2);
  EXPECT_EQ(metrics_warning(path(), 2), "");
  EXPECT_EQ(metrics_warning(path(), 3), path() + ": lacks step 3, which an earlier job could not write");
}

TEST_F(MetricsTest, FirstLineTellsTheDeck) {
  constexpr std::uint64_t mark = (std::uint64_t{1} << 53) - 1;
  for (const long first_step : {0, 2}) {
    Metrics metrics(/*active=*/true);
    metrics.open(path(), first_step, first_step == 0 ? mark : 7);
    for (long step = first_step; step < first_step + 3; ++step) {
      metrics.add(ValidationMetrics{.step = step, .loss = 7});
      metrics.add(StepMetrics{.step = step + 1});
      metrics.flush();
    }
    EXPECT_EQ(recorded_run(path()).deck_mark, mark);
    EXPECT_EQ(lines().front()["deck"], mark);
    for (std::size_t i = 1; i < lines().size(); ++i) EXPECT_FALSE(lines()[i].contains("deck"));
  }
  put("{\"step\":0,\"validation_loss\":7.0,\"train_seconds\":0.0}\n");
  EXPECT_FALSE(recorded_run(path()).deck_mark);
}

TEST_F(MetricsTest, WhatIsWrittenIntoTheFileMeanwhileStays) {
  write(1, 2);
  Metrics metrics(/*active=*/true);
  metrics.open(path(), 2);
  put("notes, much longer than the metrics: " + text());
  const std::string notes = text();
  metrics.add(ValidationMetrics{.step = 2, .loss = 7});  // would replace the kept line
  metrics.flush();
  EXPECT_EQ(text().substr(0, notes.size()), notes);
}

TEST_F(MetricsTest, CopyByHardLinksKeepsItsLines) {
  write(1, 4);
  const std::string copy = folder_ / "copy", before = text();
  std::filesystem::create_hard_link(path(), copy);
  write(3, 3);
  EXPECT_EQ(order(), "v0 1 2 v2 3");
  EXPECT_EQ(text(copy), before);
}

TEST_F(MetricsTest, FullDiskEndsTheMetricsWithAWholeLine) {
  Metrics metrics(/*active=*/true);
  metrics.open(path(), 0);
  metrics.add(StepMetrics{.step = 1});
  metrics.flush();
  const std::string whole = text();
  testing::internal::CaptureStderr();
  {
    const FileSizeLimit limit(whole.size() + 10);
    metrics.add(StepMetrics{.step = 2});
    metrics.flush();
  }
  metrics.add(StepMetrics{.step = 3});
  metrics.flush();
  const std::string message = testing::internal::GetCapturedStderr();
  EXPECT_NE(message.find("; the metrics stop here"), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), message.size() - 1) << "one line: " << message;
  EXPECT_EQ(text(), whole);
}

TEST_F(MetricsTest, DirectoryInItsPlaceIsAnError) {
  std::filesystem::create_directory(path());
  Metrics metrics(/*active=*/true);
  EXPECT_NE(error_of([&] { metrics.open(path(), 0); }, ExitCode::output, Scope::this_rank).find(path()),
            std::string::npos);
}

}  // namespace
}  // namespace nanorun
