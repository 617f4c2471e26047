// What a checkpoint records of the shards, against those of a run that continues, on several ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>

#include "src/data/run_data.hpp"
#include "src/storage/h5.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/small_data.hpp"

namespace nanorun {
namespace {

/// A run of four training shards a.h5 to d.h5 of one step each, of which the first three are opened.
struct RecordedRun : SmallRun {
  RecordedRun() : SmallRun(1000) {
    for (const char* name : {"a", "b", "c", "d", "x"}) add_shard(name, tokens++);
    config.train.steps = 3;
    list({"a", "b", "c", "d"});
    record = shard_record(open());
  }

  void list(const std::vector<std::string>& names) {
    config.data.train.clear();
    for (const std::string& name : names) config.data.train.push_back(folder / (name + ".h5"));
  }

  /// What check_shards() says of the shards as they are listed now, with and without data.changed = "accept".
  std::string refusal(const std::string& of) {
    RunData data = open();
    const auto check = [&] { return check_shards(test_comm(), data, config, of); };
    const std::string error = error_of([&] { check(); }, ExitCode::data, Scope::all_ranks);
    config.data.changed = ChangedData::accept;
    const std::vector<std::string> lines = check();
    config.data.changed = ChangedData::refuse;
    EXPECT_EQ(lines.size(), error.empty() ? 0u : 1u);
    const std::string shown = error.substr(0, error.find(';'));
    if (!error.empty()) {
      EXPECT_TRUE(lines[0].starts_with("warning: " + shown + ";")) << lines[0];
      EXPECT_NE(error.find("data.changed = \"accept\""), std::string::npos) << error;
    }
    return shown;
  }
  std::string refusal() { return refusal(record); }

  std::size_t tokens = length * test_comm().size() + 1;  ///< tokens of the next shard
  std::string record;
};

TEST(ShardRecord, HoldsTheOpenedShardsAndTheNamesOfTheOthers) {
  const RecordedRun run;
  const RunData data = run.open();
  std::string expected;
  for (std::size_t i = 0; i < 3; ++i) {
    const h5::File file = h5::File::open(data.train.opened[i].path);
    std::vector<std::uint64_t> checksums(1);
    file.read<std::uint64_t>("checksums", {0}, {1}, checksums);
    expected += fmt::format("{}.h5 {} {:016x}\n", "abc"[i], data.train.opened[i].count,
                            h5::checksum<std::uint64_t>(checksums, 0));
  }
  EXPECT_EQ(run.record, expected + (test_comm().root() ? "+ 1/d.h5\n" : "+ 1\n"));
}

TEST(ShardRecord, TheSameShardsPass) {
  RecordedRun run;
  EXPECT_EQ(run.refusal(), "");
  EXPECT_EQ(run.refusal(""), "");
}

TEST(ShardRecord, OtherShardsBehindTheOpenedOnesAreRefusedByName) {
  RecordedRun run;
  run.config.train.steps = 1;
  run.list({"a", "b", "c", "d"});
  run.record = shard_record(run.open());
  const auto with = [&](const std::vector<std::string>& names) {
    run.list(names);
    return run.refusal();
  };
  const std::string second = "training shard 2 of the checkpoint, b.h5, ",
                    third = "training shard 3 of the checkpoint, c.h5, ",
                    fourth = "training shard 4 of the checkpoint, d.h5, ";
  EXPECT_EQ(with({"a", "b", "c", "d"}), "");
  EXPECT_EQ(with({"a", "b", "x", "c", "d"}), third + "comes later now: x.h5 was added before it");
  EXPECT_EQ(with({"a", "b", "d"}), third + "is no longer listed");
  EXPECT_EQ(with({"a", "b", "c"}), fourth + "is no longer listed");
  EXPECT_EQ(with({"a", "b", "d", "x"}), third + "is no longer listed");
  EXPECT_EQ(with({"a", "b", "x", "d"}), third + "was renamed or replaced: x.h5 is in its place");
  EXPECT_EQ(with({"a", "c", "b", "d"}), second + "is not in its place, which is now that of c.h5");
  // Opening more than the record has changes nothing.
  run.config.train.steps = 4;
  EXPECT_EQ(with({"a", "b", "c", "d"}), "");
  EXPECT_EQ(with({"a", "b", "c", "x"}), fourth + "was renamed or replaced: x.h5 is in its place");
}

TEST(ShardRecord, NamesMayHoldBlanks) {
  RecordedRun run;
  run.add_shard("+ 1 a", run.tokens);
  run.add_shard("b  2", run.tokens);
  run.config.train.steps = 1;
  run.list({"+ 1 a", "b  2", "+ 1 a"});
  run.record = shard_record(run.open());
  EXPECT_EQ(run.refusal(), "");
  run.list({"+ 1 a", "b", "+ 1 a"});
  EXPECT_EQ(run.refusal(),
            "training shard 2 of the checkpoint, b  2.h5, was renamed or replaced: b.h5 is in its place");
}

/// A record that counts the shards behind the opened ones, and has no names of them.
TEST(ShardRecord, RecordsOfEarlierProgramsAreCheckedAsFarAsTheyGo) {
  RecordedRun run;
  run.record = run.record.substr(0, run.record.find("+ ")) + "+ 1\n";
  EXPECT_EQ(run.refusal(), "");
  run.list({"a", "b", "c", "x"});
  EXPECT_EQ(run.refusal(), "");
  run.list({"a", "b", "c"});
  EXPECT_EQ(run.refusal(), "of 4 training shards 3 are left, though the first 3 are the same");
  run.list({"a", "c", "b", "d"});
  EXPECT_EQ(run.refusal(), "training shard 2 of the checkpoint, b.h5, is not in its place, which is now that of c.h5");
}

TEST(ShardRecord, ShardsAddedBehindAreNoted) {
  RecordedRun run;
  const auto lines = [&] {
    RunData data = run.open();
    return check_shards(test_comm(), data, run.config, run.record);
  };
  run.list({"a", "b", "c", "d", "x"});
  EXPECT_EQ(lines(), std::vector<std::string>{"1 training shard was added behind the 4 known ones"});
  run.list({"a", "b", "c", "d", "x", "x", "x"});
  EXPECT_EQ(lines(), std::vector<std::string>{"3 training shards were added behind the 4 known ones"});
}

TEST(ShardRecord, OtherShardsAreRefusedByName) {
  RecordedRun run;
  const auto with = [&](const std::vector<std::string>& names) {
    run.list(names);
    return run.refusal();
  };
  const std::string first = "training shard 1 of the checkpoint, a.h5, ",
                    second = "training shard 2 of the checkpoint, b.h5, ";
  EXPECT_EQ(with({"x", "a", "b", "c", "d"}), first + "comes later now: x.h5 was added before it");
  EXPECT_EQ(with({"a", "x", "b", "c", "d"}), second + "comes later now: x.h5 was added before it");
  EXPECT_EQ(with({"a", "c", "d"}), second + "is no longer listed");
  EXPECT_EQ(with({"a"}), second + "is no longer listed");
  EXPECT_EQ(with({"a", "x", "c", "d"}), second + "was replaced by x.h5");
  EXPECT_EQ(with({"a", "c", "b", "d"}), second + "is not in its place, which is now that of c.h5");
}

TEST(ShardRecord, ReplacedAndRenamedShardsAreRefused) {
  RecordedRun run;
  const std::string second = "training shard 2 of the checkpoint, b.h5, ";
  const auto on_root = [&](auto&& work) {
    test_comm().barrier();
    if (test_comm().root()) work();
    test_comm().barrier();
  };
  on_root([&] { std::filesystem::copy(run.folder / "b.h5", run.folder / "e.h5"); });
  run.list({"a", "e", "c", "d"});
  EXPECT_EQ(run.refusal(), second + "is now named e.h5");
  run.list({"a", "b", "c", "d"});
  EXPECT_EQ(run.refusal(), "");
  // The shard is replaced by as many other tokens.
  ShardOptions options;
  options.inputs = {run.folder / "b.bin"};
  options.output = run.folder / "b.h5";
  options.vocabulary = vocabulary;
  options.end_of_text = 0;
  options.force = true;
  on_root([&] {
    std::vector<Token> others = varied_tokens(read_shard_info(options.output).count, vocabulary);
    others.back() ^= 1;
    write_bin(options.inputs[0], bin_header(others.size()), others);
  });
  make_shards(test_comm(), options);
  EXPECT_EQ(run.refusal(), second + "holds other tokens now");
}

TEST(ShardRecord, RecordedShardsAreOpenedBehindTheStepsNeeds) {
  RecordedRun run;
  run.config.train.steps = 1;
  RunData data = run.open();
  EXPECT_EQ(data.train.opened.size(), 1u);
  EXPECT_TRUE(check_shards(test_comm(), data, run.config, run.record).empty());
  EXPECT_EQ(shard_record(data), run.record);
}

}  // namespace
}  // namespace nanorun
