// trace.h5: its rows, and runs that resume.

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "src/measure/trace_file.hpp"
#include "tests/support/trace_test.hpp"

namespace nanorun {
namespace {

template <class T>
void put(h5::File& file, const std::string& name, const h5::Extent& shape, const std::vector<T>& values) {
  file.create_growing_dataset<T>(name, shape, 8);
  file.write<T>(name, h5::Extent(shape.size()), shape, std::span<const T>(values));
}

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

TEST_F(TraceFileTest, ResumeDropsLaterRows) {
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

TEST_F(TraceFileTest, ResumeOnFewerRanksKeepsTheirColumns) {
  Reals seconds(2 * 3 * Trace::phases);
  std::iota(seconds.begin(), seconds.end(), 1.0);
  trace()->finish();
  const std::string phases = read().phases;
  {
    h5::File file = h5::File::create(folder_ / "trace.h5");
    file.write_attribute("/", "format", trace_format);
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
    put(file, "/gpu_step", {2}, Integers{0, 1});
    put(file, "/gpu_power", {2, 3}, Reals{400, 500, 600, 1, 1, 1});
    put(file, "/gpu_clock", {2, 3}, Reals{1200, 1300, 1400, 1, 1, 1});
    put(file, "/gpu_reasons", {2, 3}, std::vector<std::uint64_t>{4, 0, 64, 1, 1, 1});
  }
  const auto resumed = trace(1);
  resumed->add_gpus(1, std::vector<GpuState>{{450, 1980, 8}});
  run_steps(*resumed, 1, 2);
  resumed->finish();

  const Content content = read();
  EXPECT_EQ(content.ranks, (Integers{3, 1}));
  EXPECT_EQ(content.gpu_step, (Integers{0, 1}));
  EXPECT_EQ(content.gpu_power, (Reals{400, 500, 600, 450, 0, 0}));
  EXPECT_EQ(content.gpu_clock, (Reals{1200, 1300, 1400, 1980, 0, 0}));
  EXPECT_EQ(content.gpu_reasons, (std::vector<std::uint64_t>{4, 0, 64, 8, 0, 0}));
  ASSERT_EQ(content.seconds.size(), seconds.size());
  const auto row = content.seconds.begin() + 3 * Trace::phases;
  EXPECT_TRUE(std::equal(content.seconds.begin(), row, seconds.begin()));
  EXPECT_GE(row[index(Phase::sync)], 0.002);
  EXPECT_EQ(std::count(row + Trace::phases, content.seconds.end(), 0.0), 2 * Trace::phases);
  EXPECT_EQ(content.communication, (Reals{1, 2, 3, 0, 0, 0}));
}

/// A trace of so many ranks that has so many rows.
void put_trace(const std::string& path, const std::string& phases, std::uint64_t ranks, std::uint64_t steps) {
  Integers step(steps);
  Reals seconds(steps * ranks * Trace::phases), communication(steps * ranks);
  std::iota(step.begin(), step.end(), 0);
  std::iota(seconds.begin(), seconds.end(), 1.0);
  std::iota(communication.begin(), communication.end(), 1.0);
  h5::File file = h5::File::create(path);
  file.write_attribute("/", "format", trace_format);
  file.write_attribute("/", "format_version", std::uint64_t{2});
  file.write_attribute("/", "phases", phases);
  put(file, "/step", {steps}, step);
  put(file, "/ranks", {steps}, Integers(steps, static_cast<std::int64_t>(ranks)));
  put(file, "/tokens", {steps}, Reals(steps, 8));
  put(file, "/loss", {steps}, Reals(steps, 2));
  put(file, "/seconds", {steps, ranks, Trace::phases}, seconds);
  put(file, "/communication", {steps, ranks}, communication);
  put(file, "/validation_step", {0}, Integers{});
  put(file, "/validation_loss", {0}, Reals{});
  file.close();
}

/// From 48 ranks on a file without rows is smaller than a row.
TEST_F(TraceFileTest, TracesOfManyRanks) {
  trace()->finish();
  const std::string phases = read().phases;
  for (const std::uint64_t ranks : {47, 48, 49, 512}) {
    for (const std::uint64_t steps : {0, 3}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} steps", ranks, steps));
      put_trace(folder_ / "trace.h5", phases, ranks, steps);
      Content before;
      before.seconds = read_all<double>(h5::File::open(folder_ / "trace.h5"), "/seconds");
      before.communication = read_all<double>(h5::File::open(folder_ / "trace.h5"), "/communication");
      testing::internal::CaptureStderr();
      const long first = steps > 0 ? static_cast<long>(steps) : 5;
      const auto resumed = trace(first);
      EXPECT_EQ(h5::File::open(folder_ / "trace.h5").growing_shape("/seconds"),
                (h5::Extent{steps, ranks, Trace::phases}));
      run_steps(*resumed, first, first + 1);
      resumed->finish();
      EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
      const Content after = read();
      ASSERT_EQ(after.step.size(), steps + 1);
      EXPECT_EQ(after.ranks.back(), 1);
      ASSERT_EQ(after.seconds.size(), (steps + 1) * ranks * Trace::phases);
      EXPECT_TRUE(std::equal(before.seconds.begin(), before.seconds.end(), after.seconds.begin()));
      EXPECT_TRUE(std::equal(before.communication.begin(), before.communication.end(), after.communication.begin()));
    }
  }
}

TEST_F(TraceFileTest, ResumeMovesAFileOfImpossiblyManyRanksAside) {
  trace()->finish();
  put_trace(folder_ / "trace.h5", read().phases, (std::uint64_t{1} << 20) + 1, 0);
  testing::internal::CaptureStderr();
  trace(1)->finish();
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("/seconds: has an impossible shape: 1048577 ranks; the file is kept as "), std::string::npos)
      << warning;
  EXPECT_EQ(h5::File::open(folder_ / "trace.h5").growing_shape("/seconds"), (h5::Extent{0, 1, Trace::phases}));
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

/// The first rows, too, belong to the trace, but for steps of another run that this one goes on from.
TEST_F(TraceFileTest, ATraceKnowsWhereItBegan) {
  trace(3)->finish();
  testing::internal::CaptureStderr();
  trace(5);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("trace.h5: lacks steps 4 to 5, which"), std::string::npos) << said;
  EXPECT_EQ(h5::File::open(folder_ / "trace.h5").read_integer_attribute("/", "first_step"), 3u);
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
  constexpr std::uint64_t row = (5 + Trace::phases) * sizeof(double), most = max_waiting_rows / row,
                          steps = most + 1000;
  TraceFile file(test_comm(), folder_ / "trace.h5", 0);
  TraceRows rows;
  rows.step.resize(steps);
  std::iota(rows.step.begin(), rows.step.end(), 0);
  rows.ranks.assign(steps, 1), rows.tokens.assign(steps, 8), rows.communication.assign(steps, 0);
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

TEST_F(TraceFileTest, ResumeTakesTheFormerNameOfAPhase) {
  const auto first = trace();
  run_steps(*first, 0, 1);
  first->finish();
  {
    h5::File file = h5::File::open_append(folder_ / "trace.h5");
    std::string phases = file.read_text_attribute("/", "phases");
    file.write_attribute("/", "phases", phases.replace(phases.find(",sync,"), 6, ",agree,"));
  }
  const auto resumed = trace(1);
  run_steps(*resumed, 1, 2);
  resumed->finish();
  EXPECT_EQ(read().step, (Integers{0, 1}));
}

TEST_F(TraceFileTest, ResumeDropsRowsThatAreNotWhole) {
  const std::map<std::string, std::uint64_t> failed_before_step = {{"/loss", 6}, {"/validation_loss", 2}},
                                             failed_at_step = {{"/step", 6}, {"/loss", 4}, {"/validation_step", 3}};
  for (const auto& lengths : {failed_before_step, failed_at_step}) {
    std::filesystem::remove(folder_ / "trace.h5");
    {
      const auto trace = this->trace();
      run_steps(*trace, 0, 4);
      trace->add_validation(2, 5.0);
      trace->finish();
    }
    {
      h5::File file = h5::File::open_append(folder_ / "trace.h5");
      for (const auto& [name, length] : lengths) file.resize(name, {length});
      file.close();
    }
    testing::internal::CaptureStderr();
    const auto trace = this->trace(8);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("trace.h5: lacks steps 5 to 8, which"), std::string::npos);
    run_steps(*trace, 8, 9);
    trace->finish();
    const Content content = read();
    EXPECT_EQ(content.step, (Integers{0, 1, 2, 3, 8}));
    EXPECT_EQ(content.loss, (Reals{10, 9, 8, 7, 2}));
    EXPECT_EQ(content.validation_step, (Integers{2}));
    EXPECT_EQ(content.validation_loss, (Reals{5}));
  }
}

TEST_F(TraceFileTest, ResumeMovesAnUnreadableFileAside) {
  std::ofstream(folder_ / "trace.h5") << "no HDF5";
  const auto trace = this->trace(3);
  run_steps(*trace, 3, 4);
  trace->finish();
  EXPECT_EQ(read().step, (Integers{3}));
  std::ostringstream kept;
  kept << std::ifstream(folder_ / "trace.h5.1").rdbuf();
  EXPECT_EQ(kept.str(), "no HDF5");
}

TEST_F(TraceFileTest, ResumeMovesAFileOfAnotherVersionAside) {
  for (const auto& [version, aside] : {std::pair(1ull, "trace.h5.1"), {3, "trace.h5.2"}}) {
    const auto first = trace();
    run_steps(*first, 0, 1);
    first->finish();
    h5::File::open_append(folder_ / "trace.h5").write_attribute("/", "format_version", std::uint64_t{version});
    testing::internal::CaptureStderr();
    trace(1)->finish();
    const std::string warning = testing::internal::GetCapturedStderr();
    EXPECT_NE(warning.find("trace.h5: written by another version of the program"), std::string::npos) << warning;
    const h5::File kept = h5::File::open(folder_ / aside);
    EXPECT_EQ(kept.read_integer_attribute("/", "format_version"), version);
    EXPECT_EQ(read_all<std::int64_t>(kept, "/step"), (Integers{0}));
    EXPECT_EQ(h5::File::open(folder_ / "trace.h5").read_integer_attribute("/", "format_version"), 2u);
    EXPECT_EQ(read().step, (Integers{}));
  }
}

TEST_F(TraceFileTest, ResumeMovesAFileOfImpossibleShapesAside) {
  const std::pair<const char*, h5::Extent> shapes[] = {{"/seconds", {4}}, {"/step", {1, 1}}, {"/validation_step", {}}};
  for (const auto& [name, shape] : shapes) {
    const auto first = trace();
    run_steps(*first, 0, 1);
    first->finish();
    {
      const hid_t file = H5Fopen((folder_ / "trace.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
      EXPECT_GE(H5Ldelete(file, name, H5P_DEFAULT), 0);
      H5Fclose(file);
    }
    h5::File::open_append(folder_ / "trace.h5").create_dataset<double>(name, shape);
    testing::internal::CaptureStderr();
    trace(1)->finish();
    const std::string warning = testing::internal::GetCapturedStderr();
    EXPECT_NE(warning.find(std::string(name) + ": has an impossible shape"), std::string::npos) << warning;
    EXPECT_EQ(read().step, (Integers{}));
  }
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
