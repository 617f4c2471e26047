// The files that all ranks of a run write into.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/ops.hpp"
#include "src/measure/trace.hpp"
#include "src/measure/trace_columns.hpp"
#include "src/measure/trace_json.hpp"
#include "src/storage/h5.hpp"
#include "tests/support/environment.hpp"

namespace nanorun {
namespace {

struct TestStream {
  kernels::Stream handle = ops::create_stream(kernels::Gemms::none);
  ~TestStream() { ops::destroy_stream(handle); }
};

/// Steps [first, last); rank r spends r + 1 ms of each in the forward pass, beside a transfer.
void run_steps(Trace& trace, const TestStream& collectives, long first, long last) {
  for (long step = first; step < last; ++step) {
    trace.begin_step(step);
    {
      Transfer reduce(trace, Phase::reduce_gradients, collectives.handle);
      Region forward(trace, Phase::forward);
      std::this_thread::sleep_for(std::chrono::milliseconds(test_comm().rank() + 1));
    }
    trace.end_step(64, 1);
  }
}

TEST(TraceRanks, EachHasAColumnAndEvents) {
  if (ops::device_count() == 0) GTEST_SKIP() << "no device";
  const TestStream compute, collectives;
  const SharedFolder folder;
  constexpr long steps = 40;
  const auto ranks = static_cast<std::uint64_t>(test_comm().size());
  TraceConfig config;
  config.json_steps = {3};
  config.flush_every = 30;
  Trace first(test_comm(), compute.handle, config, NodeLayout::consecutive(test_comm().size(), 0), folder / "", 0);
  run_steps(first, collectives, 0, steps);
  first.finish();
  Trace second(test_comm(), compute.handle, config, NodeLayout::consecutive(test_comm().size(), 0), folder / "",
               steps / 2);
  run_steps(second, collectives, steps / 2, steps);
  second.finish();
  const Trace::Summary summary = second.summarise();
  const auto forward = static_cast<int>(Phase::forward);
  EXPECT_GE(summary.max[forward], 1e-3 * test_comm().size() * steps / 2);
  EXPECT_LE(summary.min[forward], summary.avg[forward]);
  EXPECT_LE(summary.avg[forward], summary.max[forward]);
  EXPECT_GE(summary.communication, 0.5e-3 * (test_comm().size() + 1) * steps / 2);
  EXPECT_EQ(summary.hidden, 1);
  test_comm().barrier();

  const h5::File file = h5::File::open(folder / "trace.h5");
  ASSERT_EQ(file.growing_shape("/seconds"), (h5::Extent{steps, ranks, Trace::phases}));
  ASSERT_EQ(file.growing_shape("/communication"), (h5::Extent{steps, ranks}));
  std::vector<double> seconds(steps * ranks * Trace::phases), communication(steps * ranks);
  file.read<double>("/communication", {0, 0}, {steps, ranks}, std::span<double>(communication));
  file.read<double>("/seconds", {0, 0, 0}, {steps, ranks, Trace::phases}, std::span<double>(seconds));
  for (std::uint64_t row = 0; row < steps * ranks; ++row) {
    const double* phase = seconds.data() + row * Trace::phases;
    EXPECT_GE(phase[forward], 1e-3 * static_cast<double>(row % ranks + 1));
    EXPECT_EQ(phase[static_cast<int>(Phase::backward)], 0);
    EXPECT_GE(communication[row], 1e-3 * static_cast<double>(row % ranks + 1));
  }

  std::map<int, std::string> names;
  std::map<int, int> regions, transfers;
  const auto trace_json = nlohmann::json::parse(std::ifstream(folder / "trace.json"));
  for (const nlohmann::json& event : trace_json.at("traceEvents")) {
    if (event.at("name") == "process_name") names[event.at("pid")] = event.at("args").at("name");
    if (event.at("name") == "forward") ++regions[event.at("pid")];
    if (event.at("name") == "reduce_gradients") ++transfers[event.at("pid")];
  }
  EXPECT_EQ(names.size(), ranks);
  for (int rank = 0; rank < test_comm().size(); ++rank) {
    EXPECT_EQ(names[rank], "rank " + std::to_string(rank));
    EXPECT_EQ(regions[rank], 1);
    EXPECT_EQ(transfers[rank], 1);
  }
}

/// Nodes of two ranks, the last of which may have one.
TEST(TraceRanks, OfANodeShareAColumn) {
  if (ops::device_count() == 0) GTEST_SKIP() << "no device";
  const TestStream compute, collectives;
  const SharedFolder folder;
  constexpr std::uint64_t steps = 70;  // more than travel at once
  const int ranks = test_comm().size();
  const auto nodes = static_cast<std::uint64_t>((ranks + 1) / 2);
  TraceConfig config;
  config.flush_every = 100;
  config.ranks = TraceRanks::quantiles;
  Trace trace(test_comm(), compute.handle, config, NodeLayout::consecutive(ranks, 2), folder / "", 0);
  run_steps(trace, collectives, 0, steps);
  trace.finish();
  test_comm().barrier();

  const h5::File file = h5::File::open(folder / "trace.h5");
  ASSERT_EQ(file.growing_shape("/seconds"), (h5::Extent{steps, nodes, Trace::phases}));
  ASSERT_EQ(file.growing_shape("/quantiles"), (h5::Extent{steps, nodes, quantities, quantile_count}));
  std::vector<std::int32_t> members(steps * nodes), slowest(steps * nodes * quantities);
  std::vector<float> quantiles(steps * nodes * quantities * quantile_count);
  std::vector<double> seconds(steps * nodes * Trace::phases);
  file.read<std::int32_t>("/group_ranks", {0, 0}, {steps, nodes}, std::span<std::int32_t>(members));
  file.read<std::int32_t>("/slowest", {0, 0, 0}, {steps, nodes, quantities}, std::span<std::int32_t>(slowest));
  file.read<float>("/quantiles", {0, 0, 0, 0}, {steps, nodes, quantities, quantile_count}, std::span<float>(quantiles));
  file.read<double>("/seconds", {0, 0, 0}, {steps, nodes, Trace::phases}, std::span<double>(seconds));
  constexpr auto forward = static_cast<std::size_t>(Phase::forward);
  for (std::uint64_t at = 0; at < steps * nodes; ++at) {
    const int first = 2 * static_cast<int>(at % nodes), last = std::min(first + 2, ranks);
    EXPECT_EQ(members[at], last - first);
    const float* const found = quantiles.data() + (at * quantities + forward) * quantile_count;
    EXPECT_GE(found[0], 1e-3f * static_cast<float>(first + 1) * 0.999f);
    EXPECT_GE(found[4], 1e-3f * static_cast<float>(last) * 0.999f);
    EXPECT_TRUE(std::is_sorted(found, found + quantile_count));
    EXPECT_GE(seconds[at * Trace::phases + forward], found[0] * 0.999);
    EXPECT_LE(seconds[at * Trace::phases + forward], found[4] * 1.001);
    const std::int32_t rank = slowest[at * quantities + forward];
    EXPECT_TRUE(first <= rank && rank < last) << rank;
  }
}

/// The names of the ranks that a trace.json holds events of.
std::map<int, std::string> shown_in(const std::string& path) {
  std::map<int, std::string> names;
  const auto trace_json = nlohmann::json::parse(std::ifstream(path));
  for (const nlohmann::json& event : trace_json.at("traceEvents")) {
    if (event.at("name") == "process_name") names[event.at("pid")] = event.at("args").at("name");
  }
  return names;
}

TEST(TraceRanks, OnlyThoseThatAreShownHaveEvents) {
  const SharedFolder folder;
  const int last = test_comm().size() - 1;
  const std::vector<TraceSpan> spans = {{Phase::forward, "phase", Track::compute, 0, 0, 1}};
  std::vector<ShownRank> shown = {{0, "rank 0"}};
  if (last > 0) shown.push_back({last, "the last"});
  write_trace_json(test_comm(), folder / "trace.json", spans, shown);
  std::map<int, std::string> expected;
  for (const ShownRank& rank : shown) expected[rank.rank] = rank.name;
  EXPECT_EQ(shown_in(folder / "trace.json"), expected);
  EXPECT_TRUE(is_trace_json(folder / "trace.json"));
}

TEST(TraceRanks, GroupsShowSomeRanks) {
  if (ops::device_count() == 0) GTEST_SKIP() << "no device";
  const TestStream compute, collectives;
  const SharedFolder folder;
  TraceConfig config;
  config.json_steps = {1};
  config.ranks = TraceRanks::quantiles;
  Trace trace(test_comm(), compute.handle, config, NodeLayout::consecutive(test_comm().size(), 2), folder / "", 0);
  run_steps(trace, collectives, 0, 3);
  trace.finish();
  test_comm().barrier();
  const std::map<int, std::string> names = shown_in(folder / "trace.json");
  ASSERT_FALSE(names.empty());
  for (const auto& [rank, name] : names) {
    const std::string begin = "rank " + std::to_string(rank);
    EXPECT_EQ(name.substr(0, begin.size() + 9), rank == 0 ? begin : begin + " on node ");
  }
  EXPECT_TRUE(names.contains(0));
}

}  // namespace
}  // namespace nanorun
