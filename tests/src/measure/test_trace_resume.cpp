// trace.h5: what a run that resumes keeps of it, and when it moves the file aside.

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

class TraceResumeTest : public TraceTest {};

TEST_F(TraceResumeTest, ResumeDropsLaterRows) {
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

TEST_F(TraceResumeTest, ResumeOnFewerRanksKeepsTheirColumns) {
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
  EXPECT_EQ(content.communication_between, Reals(6));  // earlier programs did not record it
}

/// A trace of so many ranks that has so many rows.
void put_trace(const std::string& path, const std::string& phases, std::uint64_t ranks, std::uint64_t steps) {
  Integers step(steps);
  Reals seconds(steps * ranks * Trace::phases), communication(steps * ranks), between(steps * ranks);
  std::iota(step.begin(), step.end(), 0);
  std::iota(seconds.begin(), seconds.end(), 1.0);
  std::iota(communication.begin(), communication.end(), 1.0);
  std::iota(between.begin(), between.end(), 0.5);
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
  put(file, "/communication_between", {steps, ranks}, between);
  put(file, "/validation_step", {0}, Integers{});
  put(file, "/validation_loss", {0}, Reals{});
  file.close();
}

/// From 48 ranks on a file without rows is smaller than a row.
TEST_F(TraceResumeTest, TracesOfManyRanks) {
  trace()->finish();
  const std::string phases = read().phases;
  for (const std::uint64_t ranks : {47, 48, 49, 512}) {
    for (const std::uint64_t steps : {0, 3}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} steps", ranks, steps));
      put_trace(folder_ / "trace.h5", phases, ranks, steps);
      Content before;
      before.seconds = read_all<double>(h5::File::open(folder_ / "trace.h5"), "/seconds");
      before.communication = read_all<double>(h5::File::open(folder_ / "trace.h5"), "/communication");
      before.communication_between = read_all<double>(h5::File::open(folder_ / "trace.h5"), "/communication_between");
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
      EXPECT_TRUE(std::equal(before.communication_between.begin(), before.communication_between.end(),
                             after.communication_between.begin()));
    }
  }
}

TEST_F(TraceResumeTest, ResumeMovesAFileOfImpossiblyManyRanksAside) {
  trace()->finish();
  put_trace(folder_ / "trace.h5", read().phases, (std::uint64_t{1} << 20) + 1, 0);
  testing::internal::CaptureStderr();
  trace(1)->finish();
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("/seconds: has an impossible shape: 1048577 columns; the file is kept as "), std::string::npos)
      << warning;
  EXPECT_EQ(h5::File::open(folder_ / "trace.h5").growing_shape("/seconds"), (h5::Extent{0, 1, Trace::phases}));
}

/// The first rows, too, belong to the trace, but for steps of another run that this one goes on from.
TEST_F(TraceResumeTest, ATraceKnowsWhereItBegan) {
  trace(3)->finish();
  testing::internal::CaptureStderr();
  trace(5);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("trace.h5: lacks steps 4 to 5, which"), std::string::npos) << said;
  EXPECT_EQ(h5::File::open(folder_ / "trace.h5").read_integer_attribute("/", "first_step"), 3u);
}

TEST_F(TraceResumeTest, ResumeTakesTheFormerNameOfAPhase) {
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

TEST_F(TraceResumeTest, ResumeDropsRowsThatAreNotWhole) {
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

TEST_F(TraceResumeTest, ResumeMovesAnUnreadableFileAside) {
  std::ofstream(folder_ / "trace.h5") << "no HDF5";
  const auto trace = this->trace(3);
  run_steps(*trace, 3, 4);
  trace->finish();
  EXPECT_EQ(read().step, (Integers{3}));
  std::ostringstream kept;
  kept << std::ifstream(folder_ / "trace.h5.1").rdbuf();
  EXPECT_EQ(kept.str(), "no HDF5");
}

TEST_F(TraceResumeTest, ResumeMovesAFileOfAnotherVersionAside) {
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

TEST_F(TraceResumeTest, ResumeMovesAFileOfImpossibleShapesAside) {
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

}  // namespace
}  // namespace nanorun
