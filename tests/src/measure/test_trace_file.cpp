// trace.h5: its rows, and other programs that have it open.

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "src/measure/trace_file.hpp"
#include "tests/support/trace_test.hpp"

namespace nanorun {
namespace {

class TraceFileTest : public TraceTest {};

TEST_F(TraceFileTest, FileHoldsEveryStep) {
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
  EXPECT_EQ(content.communication, Reals(5));  // there were no transfers
  EXPECT_EQ(content.communication_between, Reals(5));
  EXPECT_EQ(content.phases,
            "data,forward,head,backward,reduce_gradients,muon,adam,gather_weights,sync,validation,checkpoint,output,"
            "other");
  EXPECT_STREQ(phase_name(Phase::gather_weights), "gather_weights");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "trace.json"));
}

TEST_F(TraceFileTest, ManyRowsAreWrittenAtOnce) {
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

TEST_F(TraceFileTest, GpuStatesFollowTheirSteps) {
  const std::vector<GpuState> cool = {{600, 1980, 0}}, hot = {{350.5, 1200, 0x40}};
  config_.flush_every = 2;
  const auto first = trace();
  run_steps(*first, 0, 1);
  first->add_gpus(1, cool);
  run_steps(*first, 1, 3);
  first->add_gpus(3, hot);
  run_steps(*first, 3, 4);
  first->finish();
  Content content = read();
  EXPECT_EQ(content.gpu_step, (Integers{1, 3}));
  EXPECT_EQ(content.gpu_power, (Reals{600, 350.5}));
  EXPECT_EQ(content.gpu_clock, (Reals{1980, 1200}));
  EXPECT_EQ(content.gpu_reasons, (std::vector<std::uint64_t>{0, 0x40}));

  const auto second = trace(3);  // drops the looks of the steps that it repeats
  second->add_gpus(3, cool);
  run_steps(*second, 3, 4);
  second->finish();
  content = read();
  EXPECT_EQ(content.gpu_step, (Integers{1, 3}));
  EXPECT_EQ(content.gpu_clock, (Reals{1980, 1980}));
  EXPECT_EQ(content.step, (Integers{0, 1, 2, 3}));
}

/// Another program that has trace.h5 open, with HDF5's lock for reading or for writing.
class Holder {
 public:
  Holder(const std::string& path, int kind) : file_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    EXPECT_EQ(::flock(file_, kind), 0);
  }
  ~Holder() { ::close(file_); }

 private:
  int file_;
};

TEST_F(TraceFileTest, RowsWaitWhileAnotherProgramHoldsTheFile) {
  config_.flush_every = 2;
  for (const int kind : {LOCK_SH, LOCK_EX}) {
    std::filesystem::remove(folder_ / "trace.h5");
    const auto trace = this->trace();
    run_steps(*trace, 0, 2);
    testing::internal::CaptureStderr();
    {
      const Holder holder(folder_ / "trace.h5", kind);
      const auto size = std::filesystem::file_size(folder_ / "trace.h5");
      trace->add_validation(2, 5);
      trace->add_gpus(3, std::vector<GpuState>{{600, 1980, 0}});
      run_steps(*trace, 2, 7);
      EXPECT_EQ(std::filesystem::file_size(folder_ / "trace.h5"), size);
    }
    EXPECT_EQ(read().step, (Integers{0, 1}));
    run_steps(*trace, 7, 8);
    EXPECT_EQ(read().step, (Integers{0, 1, 2, 3, 4, 5, 6, 7}));
    run_steps(*trace, 8, 9);
    trace->finish();
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;  // that it waits, and that it is over
    EXPECT_NE(said.find("trace.h5: another program has it open, and HDF5's lock on it; what is traced waits in memory"),
              std::string::npos)
        << said;
    EXPECT_NE(said.find("trace.h5: is written again\n"), std::string::npos) << said;
    const Content content = read();
    EXPECT_EQ(content.step, (Integers{0, 1, 2, 3, 4, 5, 6, 7, 8}));
    EXPECT_EQ(content.loss, (Reals{10, 9, 8, 7, 6, 5, 4, 3, 2}));
    EXPECT_EQ(content.seconds.size(), 9u * Trace::phases);
    EXPECT_EQ(content.validation_step, (Integers{2}));
    EXPECT_EQ(content.gpu_step, (Integers{3}));
  }
}

TEST_F(TraceFileTest, RowsThatNeverReachTheFileAreTold) {
  const auto first = trace();
  run_steps(*first, 0, 2);
  first->flush();
  testing::internal::CaptureStderr();
  {
    const Holder holder(folder_ / "trace.h5", LOCK_EX);
    run_steps(*first, 2, 5);
    first->finish();
  }
  std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("HDF5's lock on it; it stays so to the end: the rows of steps 3 to 5 are lost\n"),
            std::string::npos)
      << said;
  testing::internal::CaptureStderr();
  const auto second = trace(5);
  said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("trace.h5: lacks steps 3 to 5, which an earlier job could not write"), std::string::npos) << said;
  run_steps(*second, 5, 6);
  second->finish();
  EXPECT_EQ(read().step, (Integers{0, 1, 5}));
  testing::internal::CaptureStderr();
  trace(7);
  said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("trace.h5: lacks steps 3 to 5, 7, which"), std::string::npos) << said;
}

/// Whoever still reads the file keeps it as it was.
TEST_F(TraceFileTest, ReadersAtTheEndCostNoRows) {
  const auto trace = this->trace();
  run_steps(*trace, 0, 2);
  trace->flush();
  const Holder holder(folder_ / "trace.h5", LOCK_SH);
  std::filesystem::create_hard_link(folder_ / "trace.h5", folder_ / "seen.h5");
  const auto size = std::filesystem::file_size(folder_ / "seen.h5");
  testing::internal::CaptureStderr();
  run_steps(*trace, 2, 5);
  trace->finish();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("lost"), std::string::npos) << said;
  EXPECT_NE(said.find("trace.h5: is written again\n"), std::string::npos) << said;
  EXPECT_EQ(read().step, (Integers{0, 1, 2, 3, 4}));
  EXPECT_EQ(std::filesystem::file_size(folder_ / "seen.h5"), size);
}

TEST_F(TraceFileTest, AFileThatAnotherWritesIsNotReplaced) {
  const auto first = trace();
  run_steps(*first, 0, 3);
  first->finish();
  for (const long step : {2, 0}) {
    testing::internal::CaptureStderr();
    std::unique_ptr<Trace> second;
    {
      const Holder holder(folder_ / "trace.h5", LOCK_EX);
      second = trace(step);
      run_steps(*second, step, step + 2);
      second->add_validation(step, 4);
      second->flush();
    }
    EXPECT_EQ(read().step, (Integers{0, 1, 2}));
    run_steps(*second, step + 2, 3);
    second->finish();
    EXPECT_NE(testing::internal::GetCapturedStderr().find("trace.h5: is written again\n"), std::string::npos);
    const Content content = read();
    EXPECT_EQ(content.step.size(), step == 2 ? 4u : 3u);
    EXPECT_EQ(content.step[2], 2);
    EXPECT_EQ(content.validation_step, (Integers{step}));
    std::filesystem::remove(folder_ / "trace.h5");
    const auto again = trace();
    run_steps(*again, 0, 3);
    again->finish();
  }
}

TEST_F(TraceFileTest, RowsThatWaitHaveABound) {
  constexpr std::uint64_t row = (6 + Trace::phases) * sizeof(double), most = max_waiting_rows / row,
                          steps = most + 1000;
  TraceFile file(test_comm(), TraceColumns(TraceRanks::all, NodeLayout()), folder_ / "trace.h5", 0);
  TraceRows rows;
  rows.step.resize(steps);
  std::iota(rows.step.begin(), rows.step.end(), 0);
  rows.ranks.assign(steps, 1);
  rows.tokens.assign(steps, 8);
  rows.communication.assign(steps, 0);
  rows.communication_between.assign(steps, 0);
  rows.loss.assign(rows.step.begin(), rows.step.end());
  rows.seconds.assign(steps * Trace::phases, 0.5);
  testing::internal::CaptureStderr();
  {
    const Holder holder(folder_ / "trace.h5", LOCK_SH);
    file.append(rows);
  }
  file.append({});
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find(fmt::format("the newest {} steps at most", most)), std::string::npos) << said;
  EXPECT_NE(said.find("is written again; the rows of 1000 steps did not fit"), std::string::npos) << said;
  const Content content = read();
  ASSERT_EQ(content.step.size(), most);
  EXPECT_EQ(content.step.front(), 1000);
  EXPECT_EQ(content.loss.front(), 1000);
  EXPECT_EQ(content.step.back(), static_cast<std::int64_t>(steps) - 1);
  EXPECT_EQ(content.seconds.size(), most * Trace::phases);
}

TEST_F(TraceFileTest, ACopyByHardLinksKeepsItsRows) {
  config_.flush_every = 1;
  const auto trace = this->trace();
  run_steps(*trace, 0, 2);
  std::filesystem::create_hard_link(folder_ / "trace.h5", folder_ / "copy.h5");
  run_steps(*trace, 2, 4);
  EXPECT_EQ(read().step, (Integers{0, 1, 2, 3}));
  EXPECT_EQ(h5::File::open(folder_ / "copy.h5").growing_shape("/step"), (h5::Extent{2}));
}

TEST_F(TraceFileTest, AFailureToWriteEndsTheTraceWithOneWarning) {
  const auto trace = this->trace();
  run_steps(*trace, 0, 1);
  std::filesystem::remove(folder_ / "trace.h5");
  testing::internal::CaptureStderr();
  trace->flush();
  run_steps(*trace, 1, 2);
  trace->finish();
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("trace.h5: No such file or directory; tracing stops here"), std::string::npos) << warning;
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1) << warning;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "trace.h5"));
}

}  // namespace
}  // namespace nanorun
