// Ranks that were started with different programs or arguments.

#include <gtest/gtest.h>

#include "src/command_line.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"

namespace nanorun {
namespace {

using Strings = std::vector<std::string>;

/// The message where the last rank alone was started with `last`, and all others with `others`.
std::string error_with(const Strings& others, const Strings& last) {
  Comm& comm = test_comm();
  const Strings& own = comm.rank() == comm.size() - 1 ? last : others;
  return error_on_all_ranks(ExitCode::usage, [&] { require_same_command(comm, own); });
}

TEST(SameCommand, IsAccepted) {
  EXPECT_NO_THROW(require_same_command(test_comm(), {"nanorun 1.0.0", "train", "a.toml"}));
  EXPECT_NO_THROW(require_same_command(test_comm(), {}));
}

TEST(SameCommand, NamesTheRankAndTheFirstWordThatDiffers) {
  const auto message = [](const std::string& last, const std::string& first) {
    return fmt::format(
        "rank {} was started with {} where rank 0 was started with {}: start all ranks of a job with one "
        "program and one command line",
        test_comm().size() - 1, last, first);
  };
  EXPECT_EQ(error_with({"1.0.0", "train"}, {"1.0.1", "train"}), message("\"1.0.1\"", "\"1.0.0\""));
  EXPECT_EQ(error_with({"v", "train", "a.toml"}, {"v", "train", "b.toml"}), message("\"b.toml\"", "\"a.toml\""));
  EXPECT_EQ(error_with({"v", "train", "a.toml"}, {"v", "keys"}), message("\"keys\"", "\"train\""));
  EXPECT_EQ(error_with({"v", "a", "x=1"}, {"v", "a"}), message("nothing", "\"x=1\""));
  EXPECT_EQ(error_with({"v", "a"}, {"v", "a", "x=1"}), message("\"x=1\"", "nothing"));
  EXPECT_EQ(error_with({"v", "ab", "c"}, {"v", "a", "bc"}), message("\"a\"", "\"ab\""));
  EXPECT_EQ(error_with({"v", std::string(1000, 'x')}, {"v", ""}),
            message("\"\"", fmt::format("\"{}...\"", std::string(157, 'x'))));
}

TEST(SameCommand, NamesTheLowestRankThatDiffers) {
  const int rank = test_comm().rank();
  const std::string message =
      error_on_all_ranks(ExitCode::usage, [&] { require_same_command(test_comm(), {fmt::format("{}", rank)}); });
  EXPECT_TRUE(message.starts_with("rank 1 was started with \"1\" where rank 0 was started with \"0\"")) << message;
}

}  // namespace
}  // namespace nanorun
