#include "src/trace.hpp"

#include <gtest/gtest.h>
#include <Kokkos_Core.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <thread>
#include <type_traits>

#include "kernels/ops.hpp"
#include "src/h5.hpp"
#include "tests/environment.hpp"

namespace nanorun {
namespace {

using nlohmann::json;
using Integers = std::vector<std::int64_t>;
using Reals = std::vector<double>;

constexpr int index(Phase phase) { return static_cast<int>(phase); }

/// Much longer than a region itself costs, so that time counted twice shows.
void work() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

/// Steps [first, last) with nested regions; every phase but `other` gets one work() a step.
void run_steps(Trace& trace, long first, long last) {
  for (long step = first; step < last; ++step) {
    trace.begin_step(step);
    {
      Region backward(trace, Phase::backward);
      work();
      {
        Region reduce(trace, Phase::reduce_gradients);
        work();
      }
      {
        Region reduce(trace, Phase::reduce_gradients);
        Region agree(trace, Phase::agree);
        work();
      }
    }
    work();
    trace.end_step(1000.0 + step, 10.0 - step);
  }
}

template <class T>
std::vector<T> read_all(const h5::File& file, const std::string& name) {
  const h5::Extent shape = file.shape(name);
  std::vector<T> values(std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>()));
  file.read<T>(name, h5::Extent(shape.size()), shape, std::span<T>(values));
  return values;
}

template <class T>
void put(h5::File& file, const std::string& name, const h5::Extent& shape, const std::vector<T>& values) {
  file.create_growing_dataset<T>(name, shape, 8);
  file.write<T>(name, h5::Extent(shape.size()), shape, std::span<const T>(values));
}

/// What trace.h5 holds.
struct Content {
  Integers step, ranks, validation_step;
  Reals tokens, loss, seconds, communication, validation_loss;
  std::string phases;
};

class TraceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (ops::device_count() == 0) GTEST_SKIP() << "no device";
    compute_ = ops::create_stream(false);
    collectives_ = ops::create_stream(false);
    event_ = ops::create_event();
  }
  void TearDown() override {
    if (ops::device_count() == 0) return;
    ops::destroy_event(event_);
    ops::destroy_stream(compute_);
    ops::destroy_stream(collectives_);
  }

  std::unique_ptr<Trace> trace(long first_step = 0) {
    return std::make_unique<Trace>(test_comm(), compute_, config_, folder_ / "", first_step);
  }

  /// What is enqueued on `then` from now on begins after all that was enqueued on `first`.
  void order(kernels::Stream first, kernels::Stream then) {
    ops::record(first, event_);
    ops::wait(then, event_);
  }

  /// A transfer that the compute stream waits for.
  void exposed_transfer(Trace& trace, Phase phase) {
    Region wait(trace, phase);
    order(compute_, collectives_);
    {
      Transfer transfer(trace, phase, collectives_);
      work();
    }
    order(collectives_, compute_);
  }

  /// Steps [first, last) with a transfer beside the backward pass and two that the compute stream waits for.
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
      exposed_transfer(trace, Phase::gather_weights);
      exposed_transfer(trace, Phase::agree);
      trace.end_step(1, 1);
    }
  }

  Content read() const {
    const h5::File file = h5::File::open(folder_ / "trace.h5");
    Content content;
    content.step = read_all<std::int64_t>(file, "/step");
    content.ranks = read_all<std::int64_t>(file, "/ranks");
    content.tokens = read_all<double>(file, "/tokens");
    content.loss = read_all<double>(file, "/loss");
    content.seconds = read_all<double>(file, "/seconds");
    content.communication = read_all<double>(file, "/communication");
    content.validation_step = read_all<std::int64_t>(file, "/validation_step");
    content.validation_loss = read_all<double>(file, "/validation_loss");
    content.phases = file.read_text_attribute("/", "phases");
    return content;
  }

  /// trace.h5 after the end of the trace.
  h5::File finished(Trace& trace) const {
    trace.finish();
    return h5::File::open(folder_ / "trace.h5");
  }

  json events() const { return json::parse(std::ifstream(folder_ / "trace.json")).at("traceEvents"); }

  TraceConfig config_;
  TempFolder folder_;
  kernels::Stream compute_, collectives_;
  ops::Event event_;
};

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
    EXPECT_NEAR(row(Phase::agree), event.at("agree"), 1e-8);
    EXPECT_NEAR(row(Phase::reduce_gradients), event.at("reduce_gradients") - event.at("agree"), 1e-8);
    EXPECT_NEAR(row(Phase::backward), event.at("backward") - event.at("reduce_gradients"), 1e-8);
    EXPECT_NEAR(row(Phase::other), whole - event.at("backward"), 1e-8);
    EXPECT_NEAR(row(Phase::agree) + row(Phase::reduce_gradients) + row(Phase::backward) + row(Phase::other), whole,
                1e-8);
    for (const Phase phase : {Phase::agree, Phase::reduce_gradients, Phase::backward, Phase::other}) {
      EXPECT_GE(row(phase), 0.002) << phase_name(phase);
    }
    EXPECT_EQ(row(Phase::muon), 0);
  }
}

TEST_F(TraceTest, FileHoldsEveryStep) {
  config_.flush_every = 2;
  const auto trace = this->trace();
  run_steps(*trace, 0, 5);
  EXPECT_EQ(read().step, (Integers{0, 1, 2, 3}));  // written every two steps, readable meanwhile
  trace->finish();

  const Content content = read();
  EXPECT_EQ(content.step, (Integers{0, 1, 2, 3, 4}));
  EXPECT_EQ(content.ranks, (Integers{1, 1, 1, 1, 1}));
  EXPECT_EQ(content.tokens, (Reals{1000, 1001, 1002, 1003, 1004}));
  EXPECT_EQ(content.loss, (Reals{10, 9, 8, 7, 6}));
  EXPECT_EQ(content.seconds.size(), 5u * Trace::phases);
  ASSERT_EQ(content.communication.size(), 5u);
  for (int step = 0; step < 5; ++step) {  // without transfers, the phases of gradients and weights
    EXPECT_EQ(content.communication[step], content.seconds[step * Trace::phases + index(Phase::reduce_gradients)]);
  }
  EXPECT_EQ(content.phases,
            "data,forward,head,backward,reduce_gradients,muon,adam,gather_weights,agree,validation,checkpoint,output,"
            "other");
  EXPECT_STREQ(phase_name(Phase::gather_weights), "gather_weights");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "trace.json"));
}

TEST_F(TraceTest, ManyRowsAreWrittenAtOnce) {
  config_.flush_every = 300;
  const auto trace = this->trace();
  for (long step = 0; step < 1000; ++step) {
    trace->begin_step(step);
    trace->end_step(1, static_cast<double>(step));
  }
  trace->finish();
  const Content content = read();
  ASSERT_EQ(content.step.size(), 1000u);
  ASSERT_EQ(content.seconds.size(), 1000u * Trace::phases);
  for (long step = 0; step < 1000; ++step) {
    EXPECT_EQ(content.step[step], step);
    EXPECT_EQ(content.loss[step], step);
    EXPECT_GT(content.seconds[step * Trace::phases + index(Phase::other)], 0);
  }
}

TEST_F(TraceTest, ResumeDropsLaterRows) {
  const auto first = trace();
  first->add_validation(0, 11);
  run_steps(*first, 0, 4);
  first->add_validation(2, 5);
  first->add_validation(3, 4);
  first->finish();
  const Content before = read();
  EXPECT_EQ(before.validation_step, (Integers{0, 2, 3}));

  const auto second = trace(2);
  EXPECT_EQ(read().step, (Integers{0, 1}));
  EXPECT_EQ(read().validation_step, (Integers{0, 2}));
  second->add_validation(2, 5.5);
  second->begin_step(2);
  second->end_step(77, 0.5);
  second->finish();
  const Content after = read();
  EXPECT_EQ(after.step, (Integers{0, 1, 2}));
  EXPECT_EQ(after.tokens, (Reals{1000, 1001, 77}));
  EXPECT_EQ(after.loss, (Reals{10, 9, 0.5}));
  EXPECT_EQ(after.seconds.size(), 3u * Trace::phases);
  EXPECT_TRUE(std::equal(before.seconds.begin(), before.seconds.begin() + 2 * Trace::phases, after.seconds.begin()));
  ASSERT_EQ(after.communication.size(), 3u);
  EXPECT_TRUE(std::equal(before.communication.begin(), before.communication.begin() + 2, after.communication.begin()));
  EXPECT_EQ(after.communication[2], 0);
  EXPECT_EQ(after.validation_step, (Integers{0, 2}));
  EXPECT_EQ(after.validation_loss, (Reals{11, 5.5}));
}

TEST_F(TraceTest, ResumeOnFewerRanksKeepsTheirColumns) {
  Reals seconds(2 * 3 * Trace::phases);
  std::iota(seconds.begin(), seconds.end(), 1.0);
  trace()->finish();
  const std::string phases = read().phases;
  {
    h5::File file = h5::File::create(folder_ / "trace.h5");
    file.write_attribute("/", "format_version", std::uint64_t{2});
    file.write_attribute("/", "phases", phases);
    put(file, "/step", {2}, Integers{0, 1});
    put(file, "/ranks", {2}, Integers{3, 3});
    put(file, "/tokens", {2}, Reals{8, 8});
    put(file, "/loss", {2}, Reals{2, 1});
    put(file, "/seconds", {2, 3, Trace::phases}, seconds);
    put(file, "/communication", {2, 3}, Reals{1, 2, 3, 4, 5, 6});
    put(file, "/validation_step", {0}, Integers{});
    put(file, "/validation_loss", {0}, Reals{});
  }
  const auto resumed = trace(1);
  run_steps(*resumed, 1, 2);
  resumed->finish();

  const Content content = read();
  EXPECT_EQ(content.ranks, (Integers{3, 1}));
  ASSERT_EQ(content.seconds.size(), seconds.size());
  const auto row = content.seconds.begin() + 3 * Trace::phases;
  EXPECT_TRUE(std::equal(content.seconds.begin(), row, seconds.begin()));
  EXPECT_GE(row[index(Phase::agree)], 0.002);
  EXPECT_EQ(std::count(row + Trace::phases, content.seconds.end(), 0.0), 2 * Trace::phases);
  EXPECT_EQ(content.communication, (Reals{1, 2, 3, row[index(Phase::reduce_gradients)], 0, 0}));
}

TEST_F(TraceTest, ResumeMovesAnUnreadableFileAside) {
  std::ofstream(folder_ / "trace.h5") << "no HDF5";
  const auto trace = this->trace(3);
  run_steps(*trace, 3, 4);
  trace->finish();
  EXPECT_EQ(read().step, (Integers{3}));
  std::ostringstream kept;
  kept << std::ifstream(folder_ / "trace.h5.unreadable").rdbuf();
  EXPECT_EQ(kept.str(), "no HDF5");
}

TEST_F(TraceTest, ResumeMovesAFileOfAnotherVersionAside) {
  for (const std::uint64_t version : {1, 3}) {
    const auto first = trace();
    run_steps(*first, 0, 1);
    first->finish();
    h5::File::open_append(folder_ / "trace.h5").write_attribute("/", "format_version", version);
    testing::internal::CaptureStderr();
    trace(1)->finish();
    const std::string warning = testing::internal::GetCapturedStderr();
    EXPECT_NE(warning.find("trace.h5: written by another version of the program"), std::string::npos) << warning;
    const h5::File kept = h5::File::open(folder_ / "trace.h5.unreadable");
    EXPECT_EQ(kept.read_integer_attribute("/", "format_version"), version);
    EXPECT_EQ(read_all<std::int64_t>(kept, "/step"), (Integers{0}));
    EXPECT_EQ(h5::File::open(folder_ / "trace.h5").read_integer_attribute("/", "format_version"), 2u);
    EXPECT_EQ(read().step, (Integers{}));
  }
}

TEST_F(TraceTest, AFailureToWriteEndsTheTraceWithOneWarning) {
  const auto trace = this->trace();
  run_steps(*trace, 0, 1);
  std::filesystem::remove(folder_ / "trace.h5");
  testing::internal::CaptureStderr();
  trace->flush();
  run_steps(*trace, 1, 2);
  trace->finish();
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("trace.h5: No such file or directory; the trace ends here"), std::string::npos) << warning;
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1) << warning;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "trace.h5"));
}

/// An event's [begin, end) in microseconds.
struct Span {
  explicit Span(const json& event) : begin(event.at("ts")), end(begin + event.at("dur").get<double>()) {}
  bool within(const Span& other) const { return begin >= other.begin - rounding && end <= other.end + rounding; }
  bool before(const Span& other) const { return end <= other.begin + rounding; }
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
    EXPECT_EQ(a.at("tid"), name == "reduce_gradients" || name == "agree" ? 1 : 0) << name;
    for (const json& b : events()) {
      if (b.at("ph") != "X") continue;
      const Span x(a), y(b);
      EXPECT_TRUE(x.before(y) || y.before(x) || x.within(y) || y.within(x)) << a << b;
      EXPECT_TRUE(b.at("name") != "step 1" || x.within(y)) << a;
      EXPECT_TRUE(name != "agree" || b.at("name") != "backward" || x.within(y)) << a;
    }
  }
  EXPECT_EQ(count, (std::map<std::string, int>{{"step 1", 1}, {"backward", 1}, {"reduce_gradients", 2}, {"agree", 1}}));
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
  EXPECT_EQ(threads, (std::map<int, std::string>{{0, "compute"}, {1, "communication"}}));
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
  EXPECT_GE(summary.avg[index(Phase::agree)], 0.004);
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

TEST_F(TraceTest, TransfersHaveATrackOfTheirOwn) {
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
  EXPECT_TRUE(transfers.at("gather_weights").before(transfers.at("agree")));
  EXPECT_TRUE(regions.at("backward").within(transfers.at("reduce_gradients")));
  EXPECT_TRUE(transfers.at("gather_weights").within(regions.at("gather_weights")));
}

TEST_F(TraceTest, CommunicationIsTheTimeOfTransfers) {
  config_.json_steps = {0, 1};
  const auto trace = this->trace();
  run_steps_with_transfers(*trace, 0, 2);
  trace->finish();

  Reals lasted(2);  // of the transfers of gradients and weights in trace.json
  for (const json& event : events()) {
    if (event.at("ph") != "X" || event.at("cat") != "transfer" || event.at("name") == "agree") continue;
    lasted.at(event.at("args").at("step")) += event.at("dur").get<double>() / 1e6;
  }
  const Content content = read();
  ASSERT_EQ(content.communication.size(), 2u);
  double exposed = 0;
  for (int step = 0; step < 2; ++step) {
    EXPECT_GE(content.communication[step], 0.004);
    EXPECT_NEAR(content.communication[step], lasted[step], 1e-8);
    exposed += content.seconds[step * Trace::phases + index(Phase::gather_weights)];
    EXPECT_EQ(content.seconds[step * Trace::phases + index(Phase::reduce_gradients)], 0);
  }
  const Trace::Summary summary = trace->summarise();
  EXPECT_NEAR(summary.communication, lasted[0] + lasted[1], 1e-8);
  EXPECT_NEAR(summary.hidden, 1 - exposed / (lasted[0] + lasted[1]), 1e-6);
  EXPECT_GT(summary.hidden, 0);
  EXPECT_LT(summary.hidden, 1);
}

TEST_F(TraceTest, WaitingLongerThanTheTransfersHidesNothing) {
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
  EXPECT_EQ(read_all<double>(finished(*trace), "/communication"), (Reals{summary.communication}));
}

TEST_F(TraceTest, StepsMayHaveAnyNumberOfRegionsAndTransfers) {
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
  EXPECT_GT(summary.avg[index(Phase::forward)], forward);  // and what lies before the steps
  EXPECT_GT(summary.communication, communication);
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
}

TEST(TimingTable, OfNoTimeHasNoPercentages) { EXPECT_EQ(timing_table({}).find("nan"), std::string::npos); }

}  // namespace
}  // namespace nanorun
