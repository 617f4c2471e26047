// Regions and transfers: their times, trace.json, the sums of a run and the timing table.

#include <gtest/gtest.h>
#include <Kokkos_Core.hpp>

#include <filesystem>
#include <map>
#include <sstream>
#include <type_traits>

#include "src/measure/trace_json.hpp"
#include "tests/support/trace_test.hpp"

namespace nanorun {
namespace {

using nlohmann::json;

TEST_F(TraceTest, ExclusiveTimesAddUpToTheStep) {
  config_.json_steps = {0, 1};
  const auto trace = this->trace();
  run_steps(*trace, 0, 2);
  trace->finish();

  std::map<int, std::map<std::string, double>> inclusive;  // seconds of the events, by step and name
  for (const json& event : events()) {
    if (event.at("ph") != "X") continue;
    inclusive[event.at("args").at("step")][event.at("name")] += event.at("dur").get<double>() / 1e6;
  }
  const Reals seconds = read().seconds;
  ASSERT_EQ(seconds.size(), 2u * Trace::phases);
  for (int step = 0; step < 2; ++step) {
    const auto row = [&](Phase phase) { return seconds[step * Trace::phases + index(phase)]; };
    auto& event = inclusive.at(step);
    const double whole = event.at("step " + std::to_string(step));
    EXPECT_NEAR(row(Phase::sync), event.at("sync"), 1e-8);
    EXPECT_NEAR(row(Phase::reduce_gradients), event.at("reduce_gradients") - event.at("sync"), 1e-8);
    EXPECT_NEAR(row(Phase::backward), event.at("backward") - event.at("reduce_gradients"), 1e-8);
    EXPECT_NEAR(row(Phase::other), whole - event.at("backward"), 1e-8);
    EXPECT_NEAR(row(Phase::sync) + row(Phase::reduce_gradients) + row(Phase::backward) + row(Phase::other), whole,
                1e-8);
    for (const Phase phase : {Phase::sync, Phase::reduce_gradients, Phase::backward, Phase::other}) {
      EXPECT_GE(row(phase), 0.002) << phase_name(phase);
    }
    EXPECT_EQ(row(Phase::muon), 0);
  }
}

/// An event's [begin, end) in microseconds.
struct Span {
  explicit Span(const json& event) : begin(event.at("ts")), end(begin + event.at("dur").get<double>()) {}
  bool within(const Span& other) const { return begin >= other.begin - rounding && end <= other.end + rounding; }
  bool before(const Span& other) const { return end <= other.begin; }
  static constexpr double rounding = 1e-3;
  double begin, end;
};

TEST_F(TraceTest, EventsOfChosenStepsNest) {
  config_.json_steps = {1};
  const auto trace = this->trace();
  run_steps(*trace, 0, 3);
  trace->finish();

  std::map<std::string, int> count;
  for (const json& a : events()) {
    if (a.at("ph") != "X") continue;
    const std::string name = a.at("name");
    ++count[name];
    EXPECT_EQ(a.at("args").at("step"), 1);
    EXPECT_EQ(a.at("tid"), 0) << name;
    for (const json& b : events()) {
      if (b.at("ph") != "X") continue;
      const Span x(a), y(b);
      EXPECT_TRUE(x.before(y) || y.before(x) || x.within(y) || y.within(x)) << a << b;
      EXPECT_TRUE(b.at("name") != "step 1" || x.within(y)) << a;
      EXPECT_TRUE(name != "sync" || b.at("name") != "backward" || x.within(y)) << a;
    }
  }
  EXPECT_EQ(count, (std::map<std::string, int>{{"step 1", 1}, {"backward", 1}, {"reduce_gradients", 2}, {"sync", 1}}));
}

TEST_F(TraceTest, EventsThatFollowEachOtherAreNotDrawnInsideEachOther) {
  std::vector<TraceSpan> spans;
  double begin = 6.6611681756;
  for (int i = 0; i < 1000; ++i) {
    spans.push_back({Phase::adam, "phase", Track::compute, 0, begin, 1.0000003e-7 * (i % 7)});
    begin += spans.back().seconds;
  }
  write_trace_json(test_comm(), folder_ / "trace.json", spans, all_shown(1));

  const json* last = nullptr;
  const json all = events();
  for (const json& event : all) {
    if (event.at("ph") != "X") continue;
    if (last != nullptr) {
      EXPECT_LE(Span(*last).end, Span(event).begin) << *last << event;
    }
    last = &event;
  }
  ASSERT_NE(last, nullptr);
  EXPECT_NEAR(Span(*last).end, 1e6 * begin, 2e-3);
}

TEST_F(TraceTest, EventsNameProcessAndThreads) {
  config_.json_steps = {0};
  const auto trace = this->trace();
  run_steps(*trace, 0, 1);
  trace->finish();
  std::map<int, std::string> threads;
  std::string process;
  for (const json& event : events()) {
    EXPECT_EQ(event.at("pid"), 0);
    if (event.at("name") == "process_name") process = event.at("args").at("name");
    if (event.at("name") == "thread_name") threads[event.at("tid")] = event.at("args").at("name");
  }
  EXPECT_EQ(process, "rank 0");
  EXPECT_EQ(threads, (std::map<int, std::string>{{0, "compute"}, {1, "collectives"}, {2, "upload"}}));
}

TEST_F(TraceTest, DisabledWritesNothingButKeepsSums) {
  config_.enabled = false;
  config_.json_steps = {0};
  const auto trace = this->trace();
  trace->add_validation(0, 3);
  run_steps(*trace, 0, 2);
  trace->finish();
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / ""));
  const Trace::Summary summary = trace->summarise();
  EXPECT_GE(summary.avg[index(Phase::sync)], 0.004);
  EXPECT_GE(summary.avg[index(Phase::other)], 0.004);
  EXPECT_EQ(summary.communication, 0);
}

TEST_F(TraceTest, SummaryAddsStepsAndWhatLiesBetween) {
  const auto trace = this->trace();
  run_steps(*trace, 0, 2);
  {
    Region validation(*trace, Phase::validation);
    work();
  }
  trace->finish();
  const Trace::Summary summary = trace->summarise();
  const Reals seconds = read().seconds;
  for (int phase = 0; phase < Trace::phases; ++phase) {
    if (phase == index(Phase::validation)) {
      EXPECT_EQ(seconds[phase] + seconds[Trace::phases + phase], 0);
      EXPECT_GE(summary.avg[phase], 0.002);
    } else {
      EXPECT_NEAR(summary.avg[phase], seconds[phase] + seconds[Trace::phases + phase], 1e-12);
    }
    EXPECT_EQ(summary.min[phase], summary.avg[phase]);
    EXPECT_EQ(summary.max[phase], summary.avg[phase]);
  }
}

class TransferTest : public TraceTest {
 protected:
  void SetUp() override {
    TraceTest::SetUp();
    if (IsSkipped()) return;
    collectives_ = ops::create_stream(kernels::Gemms::none);
    event_ = ops::create_event();
  }
  void TearDown() override {
    if (ops::device_count() > 0) {
      ops::destroy_event(event_);
      ops::destroy_stream(collectives_);
    }
    TraceTest::TearDown();
  }

  /// What is enqueued on `then` from now on begins after all that was enqueued on `first`.
  void order(kernels::Stream first, kernels::Stream then) {
    ops::record(first, event_);
    ops::wait(then, event_);
  }

  /// A transfer that the compute stream waits for.
  void exposed_transfer(Trace& trace, Phase phase, Level level = Level::inside) {
    Region wait(trace, phase);
    order(compute_, collectives_);
    {
      Transfer transfer(trace, phase, collectives_, level);
      work();
    }
    order(collectives_, compute_);
  }

  /// Steps [first, last) with a transfer beside the backward pass and two that the compute stream waits for, the first
  /// of these between nodes.
  void run_steps_with_transfers(Trace& trace, long first, long last) {
    for (long step = first; step < last; ++step) {
      trace.begin_step(step);
      {
        Transfer reduce(trace, Phase::reduce_gradients, collectives_);
        order(collectives_, compute_);
        {
          Region backward(trace, Phase::backward);
          work();
        }
        order(compute_, collectives_);
      }
      exposed_transfer(trace, Phase::gather_weights, Level::between);
      exposed_transfer(trace, Phase::sync);
      trace.end_step(1, 1);
    }
  }

  kernels::Stream collectives_;
  ops::Event event_;
};

TEST_F(TransferTest, TransfersHaveATrackOfTheirOwn) {
  config_.json_steps = {1};
  const auto trace = this->trace();
  run_steps_with_transfers(*trace, 0, 3);
  trace->finish();

  std::map<std::string, Span> regions, transfers;
  for (const json& event : events()) {
    if (event.at("ph") != "X") continue;
    EXPECT_EQ(event.at("args").at("step"), 1);
    const bool transfer = event.at("cat") == "transfer";
    EXPECT_EQ(event.at("tid"), transfer ? 1 : 0) << event;
    (transfer ? transfers : regions).emplace(event.at("name"), event);
  }
  ASSERT_EQ(regions.size(), 4u);
  ASSERT_EQ(transfers.size(), 3u);
  for (const auto& [name, transfer] : transfers) {
    EXPECT_GE(transfer.end - transfer.begin, 2000) << name;
    EXPECT_TRUE(transfer.within(regions.at("step 1"))) << name;
  }
  EXPECT_TRUE(transfers.at("reduce_gradients").before(transfers.at("gather_weights")));
  EXPECT_TRUE(transfers.at("gather_weights").before(transfers.at("sync")));
  EXPECT_TRUE(regions.at("backward").within(transfers.at("reduce_gradients")));
  EXPECT_TRUE(transfers.at("gather_weights").within(regions.at("gather_weights")));
}

TEST_F(TransferTest, CommunicationIsTheTimeOfTransfers) {
  config_.json_steps = {0, 1};
  const auto trace = this->trace();
  run_steps_with_transfers(*trace, 0, 2);
  trace->finish();

  Reals lasted(2), between(2);  // seconds of the transfers of gradients and weights in trace.json
  for (const json& event : events()) {
    if (event.at("ph") != "X" || event.at("cat") != "transfer" || event.at("name") == "sync") continue;
    const json& arguments = event.at("args");
    const double seconds = event.at("dur").get<double>() / 1e6;
    lasted.at(arguments.at("step")) += seconds;
    EXPECT_EQ(arguments.at("level"), event.at("name") == "gather_weights" ? "between" : "inside");
    if (arguments.at("level") == "between") between.at(arguments.at("step")) += seconds;
  }
  const Content content = read();
  ASSERT_EQ(content.communication.size(), 2u);
  double exposed = 0;
  for (int step = 0; step < 2; ++step) {
    EXPECT_GE(content.communication[step], 0.004);
    EXPECT_NEAR(content.communication[step], lasted[step], 1e-8);
    EXPECT_GE(content.communication_between[step], 0.002);
    EXPECT_NEAR(content.communication_between[step], between[step], 1e-8);
    exposed += content.seconds[step * Trace::phases + index(Phase::gather_weights)];
    EXPECT_EQ(content.seconds[step * Trace::phases + index(Phase::reduce_gradients)], 0);
  }
  const Trace::Summary summary = trace->summarise();
  EXPECT_NEAR(summary.communication, lasted[0] + lasted[1], 1e-8);
  EXPECT_NEAR(summary.between, between[0] + between[1], 1e-8);
  EXPECT_NEAR(summary.hidden, 1 - exposed / (lasted[0] + lasted[1]), 1e-6);
  EXPECT_GT(summary.hidden, 0);
  EXPECT_LT(summary.hidden, 1);
}

TEST_F(TransferTest, CopiesToTheDeviceAreShownInChosenStepsAlone) {
  config_.json_steps = {1, 2};
  const auto trace = this->trace();
  const auto copy = [&] {
    Transfer transfer(*trace, Phase::data, collectives_);
    work();
  };
  copy();
  for (long step = 0; step < 4; ++step) {
    trace->begin_step(step);
    copy();
    if (step == 2) copy();
    ops::synchronize(collectives_);
    trace->end_step(1, 1);
  }
  copy();
  trace->finish();

  std::map<long, std::vector<Span>> copies, steps;
  for (const json& event : events()) {
    if (event.at("ph") != "X") continue;
    const bool upload = event.at("cat") == "upload";
    EXPECT_EQ(event.at("tid"), upload ? 2 : 0) << event;
    EXPECT_TRUE(!upload || event.at("name") == "data") << event;
    (upload ? copies : steps)[event.at("args").at("step")].emplace_back(event);
  }
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[1].size(), 1u);
  ASSERT_EQ(copies[2].size(), 2u);
  EXPECT_TRUE(copies[2][0].before(copies[2][1]));
  for (const auto& [step, spans] : copies) {
    for (const Span& span : spans) {
      EXPECT_GE(span.begin, steps[step].at(0).begin - Span::rounding);
      EXPECT_LE(span.begin, steps[step].at(0).end);
      EXPECT_GE(span.end - span.begin, 2000);
    }
  }
  EXPECT_EQ(read().communication, Reals(4));
  EXPECT_EQ(read().communication_between, Reals(4));
  EXPECT_EQ(trace->summarise().communication, 0);
}

TEST_F(TransferTest, WaitingLongerThanTheTransfersHidesNothing) {
  const auto trace = this->trace();
  trace->begin_step(0);
  {
    Region slower_ranks(*trace, Phase::gather_weights);
    work();
    exposed_transfer(*trace, Phase::gather_weights);
  }
  trace->end_step(1, 1);
  const Trace::Summary summary = trace->summarise();
  EXPECT_GT(summary.communication, 0);
  EXPECT_EQ(summary.hidden, 0);
  trace->finish();
  EXPECT_EQ(read().communication, (Reals{summary.communication}));
  EXPECT_EQ(read().communication_between, Reals(1));
  EXPECT_EQ(summary.between, 0);
}

TEST_F(TransferTest, StepsMayHaveAnyNumberOfRegionsAndTransfers) {
  config_.json_steps = {1};
  const auto trace = this->trace();
  const auto run = [&](int count) {
    for (int i = 0; i < count; ++i) {
      Region forward(*trace, Phase::forward);
      Transfer reduce(*trace, Phase::reduce_gradients, collectives_);
    }
  };
  run(3000);  // before the first step
  for (long step = 0; step < 3; ++step) {
    trace->begin_step(step);
    run(step == 1 ? 3000 : 1);
    trace->end_step(1, 1);
  }
  trace->finish();
  std::map<std::string, int> count;
  double last = 0;
  for (const json& event : events()) {
    if (event.at("ph") != "X") continue;
    ++count[event.at("cat")];
    EXPECT_TRUE(event.at("name") == "step 1" || event.at("tid") == 0 || event.at("ts") >= last);
    if (event.at("tid") == 1) last = event.at("ts");
  }
  EXPECT_EQ(count, (std::map<std::string, int>{{"step", 1}, {"phase", 3000}, {"transfer", 3000}}));
  const Content content = read();
  const Trace::Summary summary = trace->summarise();
  double forward = 0, communication = 0;
  for (int step = 0; step < 3; ++step) {
    forward += content.seconds[step * Trace::phases + index(Phase::forward)];
    communication += content.communication[step];
  }
  EXPECT_GT(summary.avg[index(Phase::forward)], forward);   // and what lies before the steps
  EXPECT_NEAR(summary.communication, communication, 1e-9);  // what lies before counts for the first
}

std::vector<std::string> pushed;
int popped = 0;

TEST_F(TraceTest, RegionsReachAProfilingTool) {
  if (!std::is_same_v<ops::Event, kernels::portable::Event>) GTEST_SKIP() << "regions on devices are NVTX ranges";
  namespace tools = Kokkos::Tools::Experimental;
  tools::set_push_region_callback([](const char* name) { pushed.push_back(name); });
  tools::set_pop_region_callback([] { ++popped; });
  {
    const auto trace = this->trace();
    Region outer(*trace, Phase::muon);
    Region inner(*trace, Phase::gather_weights);
    EXPECT_EQ(popped, 0);
  }
  tools::set_push_region_callback(nullptr);
  tools::set_pop_region_callback(nullptr);
  EXPECT_EQ(pushed, (std::vector<std::string>{"muon", "gather_weights"}));
  EXPECT_EQ(popped, 2);
}

TEST(TimingTable, AddsUpToTheWhole) {
  Trace::Summary summary{};
  for (int phase = 0; phase < Trace::phases; ++phase) {
    summary.avg[phase] = phase == index(Phase::checkpoint) ? 0 : 0.37 * phase + 0.1;
    summary.min[phase] = 0.9 * summary.avg[phase];
    summary.max[phase] = 1.1 * summary.avg[phase];
  }
  std::map<std::string, Reals> rows;
  std::istringstream lines(timing_table(summary));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string name;
    fields >> name;
    for (double value; fields >> value;) rows[name].push_back(value);
  }
  EXPECT_EQ(rows.count("checkpoint"), 0u);
  double seconds = 0, percent = 0;
  for (int phase = 0; phase < Trace::phases; ++phase) {
    if (summary.avg[phase] == 0) continue;
    const Reals& row = rows.at(phase_name(static_cast<Phase>(phase)));
    ASSERT_EQ(row.size(), 4u);
    EXPECT_NEAR(row[0], summary.min[phase], 5.1e-4);
    EXPECT_NEAR(row[1], summary.avg[phase], 5.1e-4);
    EXPECT_NEAR(row[2], summary.max[phase], 5.1e-4);
    seconds += row[1];
    percent += row[3];
  }
  EXPECT_NEAR(percent, 100, 0.005 * Trace::phases);
  EXPECT_EQ(rows.at("total").size(), 2u);
  EXPECT_NEAR(rows.at("total")[0], seconds, 5e-4 * Trace::phases);
}

TEST(TimingTable, NamesTheCommunicationOfTransfers) {
  Trace::Summary summary{};
  summary.avg[index(Phase::gather_weights)] = 0.5;
  EXPECT_EQ(timing_table(summary).find("hidden"), std::string::npos);
  summary.communication = 2.5;
  summary.hidden = 0.8;
  const std::string table = timing_table(summary);
  const std::string line = table.substr(table.find("communication"));
  std::istringstream fields(line);
  std::string name, percent, rest;
  double seconds = 0;
  fields >> name >> seconds >> percent;
  std::getline(fields, rest);
  EXPECT_EQ(seconds, 2.5);
  EXPECT_EQ(percent, "80.00%");
  EXPECT_EQ(rest, " hidden behind computation");
  EXPECT_LT(table.find("total  "), table.find("communication"));
  EXPECT_EQ(table.find("between nodes"), std::string::npos);
  summary.between = 0.5;
  const std::string two_levels = timing_table(summary);
  EXPECT_EQ(two_levels.substr(0, table.size()), table);
  EXPECT_EQ(two_levels.substr(table.size()),
            "  between nodes                  0.500                20.00% of the communication\n");
}

TEST(TimingTable, OfNoTimeHasNoPercentages) { EXPECT_EQ(timing_table({}).find("nan"), std::string::npos); }

}  // namespace
}  // namespace nanorun
