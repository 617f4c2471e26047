// The files that all ranks of a run write into.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "src/h5.hpp"
#include "src/trace.hpp"
#include "tests/environment.hpp"

namespace nanorun {
namespace {

/// Steps [first, last); rank r spends r + 1 ms of each in the forward pass.
void run_steps(Trace& trace, long first, long last) {
  for (long step = first; step < last; ++step) {
    trace.begin_step(step);
    {
      Region forward(trace, Phase::forward);
      std::this_thread::sleep_for(std::chrono::milliseconds(test_comm().rank() + 1));
    }
    trace.end_step(64, 1);
  }
}

TEST(TraceRanks, EachHasAColumnAndEvents) {
  const SharedFolder folder;
  constexpr long steps = 40;
  const auto ranks = static_cast<std::uint64_t>(test_comm().size());
  TraceConfig config;
  config.json_steps = {3};
  config.flush_every = 30;
  Trace first(test_comm(), config, folder / "", 0);
  run_steps(first, 0, steps);
  first.finish();
  Trace second(test_comm(), config, folder / "", steps / 2);
  run_steps(second, steps / 2, steps);
  second.finish();
  const Trace::Summary summary = second.summarise();
  const auto forward = static_cast<int>(Phase::forward);
  EXPECT_GE(summary.max[forward], 1e-3 * test_comm().size() * steps / 2);
  EXPECT_LE(summary.min[forward], summary.avg[forward]);
  EXPECT_LE(summary.avg[forward], summary.max[forward]);
  test_comm().barrier();

  const h5::File file = h5::File::open(folder / "trace.h5");
  ASSERT_EQ(file.shape("/seconds"), (h5::Extent{steps, ranks, Trace::phases}));
  std::vector<double> seconds(steps * ranks * Trace::phases);
  file.read<double>("/seconds", {0, 0, 0}, {steps, ranks, Trace::phases}, std::span<double>(seconds));
  for (std::uint64_t row = 0; row < steps * ranks; ++row) {
    const double* phase = seconds.data() + row * Trace::phases;
    EXPECT_GE(phase[forward], 1e-3 * static_cast<double>(row % ranks + 1));
    EXPECT_EQ(phase[static_cast<int>(Phase::backward)], 0);
  }

  std::map<int, std::string> names;
  std::map<int, int> regions;
  const auto trace_json = nlohmann::json::parse(std::ifstream(folder / "trace.json"));
  for (const nlohmann::json& event : trace_json.at("traceEvents")) {
    if (event.at("name") == "process_name") names[event.at("pid")] = event.at("args").at("name");
    if (event.at("name") == "forward") ++regions[event.at("pid")];
  }
  EXPECT_EQ(names.size(), ranks);
  for (int rank = 0; rank < test_comm().size(); ++rank) {
    EXPECT_EQ(names[rank], "rank " + std::to_string(rank));
    EXPECT_EQ(regions[rank], 1);
  }
}

}  // namespace
}  // namespace nanorun
