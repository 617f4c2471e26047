// By what a run's files are told from a user's.

#include "src/run/run_files.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "src/config/config.hpp"
#include "src/run/lock_text.hpp"
#include "tests/support/temp_folder.hpp"

namespace nanorun {
namespace {

class RunFilesTest : public testing::Test {
 protected:
  /// Whether a file of this name with this text is nanorun's.
  bool own(const std::string& name, const std::string& text) const {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << text;
    try {
      return run_file(name).is_own(path);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
      return false;
    }
  }

  TempFolder folder_;
};

TEST_F(RunFilesTest, DeckWithoutNotes) {
  const std::string deck =
      to_toml(parse_deck("[train]\nsteps = 7\n[[stage]]\nshare = 1\n", "deck", {"run.name=other"}));
  EXPECT_TRUE(own("deck.toml", deck));
  EXPECT_FALSE(own("deck.toml", deck + "# good\n"));
  EXPECT_FALSE(own("deck.toml", "# good\n" + deck));
  EXPECT_FALSE(own("deck.toml", "[train]\nsteps = 7\n")) << "a user's own deck";
  EXPECT_FALSE(own("deck.toml", "notes"));
  std::string noted = deck;
  noted.insert(noted.find("  # "), "  # chosen by me");
  EXPECT_FALSE(own("deck.toml", noted));
}

TEST_F(RunFilesTest, LogBeginsWithTheProgram) {
  EXPECT_TRUE(own("log.txt", "nanorun 0.2.0 (aa1adf0, GNU 12.2.0, CPU build)\nstep"));
  EXPECT_FALSE(own("log.txt", "my log\n"));
  EXPECT_FALSE(own("log.txt", "nano"));
}

TEST_F(RunFilesTest, Summary) {
  EXPECT_TRUE(own("summary.json", "{\"finished\": true, \"stopped_by\": \"\", \"steps\": 3}"));
  EXPECT_FALSE(own("summary.json", "{\"steps\": 3}"));
  EXPECT_FALSE(own("summary.json", "notes"));
}

TEST_F(RunFilesTest, TimelineBeginsWithTheFirstRank) {
  const std::string begin =
      "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[{\"args\":{\"name\":\"rank "
      "0\"},\"name\":\"process_name\",\"ph\":\"M\","
      "\"pid\":0,\"tid\":0}";
  EXPECT_TRUE(own("trace.json", begin + "]}\n"));
  EXPECT_TRUE(own("trace.json", begin + ",{}]}\n"));
  EXPECT_FALSE(own("trace.json", "{\"traceEvents\":[]}"));
  EXPECT_FALSE(own("trace.json", "mine"));
}

TEST_F(RunFilesTest, TraceOfAnotherKind) {
  EXPECT_FALSE(own("trace.h5", "mine"));
  EXPECT_FALSE(own("trace.h5", "\x89HDF\r\n\x1a\n"));
}

TEST_F(RunFilesTest, PartialFilesThatAreWhole) {
  const auto own_partial = [&](const char* name, const std::string& text) {
    const std::string path = folder_ / (std::string(name) + ".partial");
    std::ofstream(path, std::ios::binary) << text;
    try {
      return is_own_partial(run_file(name), path);
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), path + ": somebody's own, or the rest of a write that was cut short");
      return false;
    }
  };
  const std::string deck = to_toml(Config());
  EXPECT_TRUE(own_partial("deck.toml", deck));
  EXPECT_FALSE(own_partial("deck.toml", deck.substr(0, deck.size() / 2)));
  EXPECT_FALSE(own_partial("deck.toml", "# mine\n" + deck));
  EXPECT_TRUE(own_partial("summary.json", "{\"finished\": true, \"stopped_by\": \"\", \"steps\": 3}"));
  EXPECT_FALSE(own_partial("summary.json", "{\"finished\": true"));
  EXPECT_FALSE(own_partial("trace.json", "mine"));
  EXPECT_TRUE(own_partial("trace.h5", "\x89HDF\r\n\x1a\n"));
}

TEST(LockText, BlankAfterACrash) {
  EXPECT_TRUE(is_blank_lock(""));
  EXPECT_TRUE(is_blank_lock(std::string(24, '\0')));
  EXPECT_FALSE(is_blank_lock(own_name()));
  EXPECT_FALSE(is_blank_lock(std::string(24, '\0').append("notes")));
}

TEST(LockText, IsTheWholeOfTheFile) {
  for (const char* text : {"process 7 on node n1", "process 7 on host n1\n", "job 17, process 4711 on node n1",
                           "job 3[2].pbs-1, process 7 on node n-1.site; checkpoints of /data/outputs/first run"}) {
    EXPECT_TRUE(is_lock_text(text)) << text;
  }
  EXPECT_TRUE(is_lock_text(own_name()));
  EXPECT_TRUE(is_lock_text(own_name() + checkpoints_of + "/data"));
  for (const char* text : {"", "notes on host n1", "process on node n1", "process 7 on node ",
                           "my process 7 on node n1", "process 7 on node n1 and more", "process 7 on node n1\nnotes",
                           "job 7 on node n1", "job 7, started on host n1"}) {
    EXPECT_FALSE(is_lock_text(text)) << text;
  }
}

}  // namespace
}  // namespace nanorun
