#include "kernels/device/code_ranges.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace nanorun::kernels {
namespace {

const std::vector<CodeRange> ptx = {{80, 1000}}, ampere_alone = {{80, 89}},
                             blackwell_and_newer = {{86, 89}, {120, 1000}};

TEST(CodeRanges, CodeOfAGpuRunsOnItsMajorVersionAlone) {
  for (const int capability : {80, 86, 89}) EXPECT_TRUE(runs_on(ampere_alone, capability)) << capability;
  for (const int capability : {70, 75, 90, 100, 120}) EXPECT_FALSE(runs_on(ampere_alone, capability)) << capability;
  EXPECT_FALSE(runs_on({}, 90));
}

TEST(CodeRanges, PtxRunsOnAllNewerOnes) {
  for (const int capability : {80, 90, 121}) EXPECT_TRUE(runs_on(ptx, capability)) << capability;
  EXPECT_FALSE(runs_on(ptx, 75));
  for (const int capability : {80, 90, 103}) EXPECT_FALSE(runs_on(blackwell_and_newer, capability)) << capability;
  for (const int capability : {86, 120, 121}) EXPECT_TRUE(runs_on(blackwell_and_newer, capability)) << capability;
}

TEST(CodeRanges, AreSaid) {
  EXPECT_EQ(ranges_text({}), "");
  EXPECT_EQ(ranges_text(ptx), "8.0 and higher");
  EXPECT_EQ(ranges_text(ampere_alone), "8.0 to 8.9");
  EXPECT_EQ(ranges_text({{120, 120}}), "12.0");
  EXPECT_EQ(ranges_text({{120, 1000}, {86, 89}}), "8.6 to 8.9, 12.0 and higher");
  EXPECT_EQ(ranges_text({{86, 89}, {80, 89}, {90, 99}}), "8.0 to 9.9");
  EXPECT_EQ(ranges_text({{80, 1000}, {120, 129}}), "8.0 and higher");
}

}  // namespace
}  // namespace nanorun::kernels
