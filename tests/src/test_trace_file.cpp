// trace.h5: its rows, and runs that resume.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "src/trace_file.hpp"
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

TEST_F(TraceFileTest, LooksAtTheGpus) {
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
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
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
