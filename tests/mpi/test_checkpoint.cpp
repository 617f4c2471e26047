// Checkpoints as they are written, kept and restored.

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "src/storage/h5.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/failed_writes.hpp"
#include "tests/support/file_size_limit.hpp"
#include "tests/support/saved_training.hpp"

namespace nanorun {
namespace {

namespace fs = std::filesystem;

/// The first `size` ranks of the test as a communicator of their own.
class FirstRanks {
 public:
  explicit FirstRanks(int size) : takes_part_(test_comm().rank() < size) {
    MPI_Comm_split(test_comm().handle(), takes_part_ ? 0 : 1, 0, &handle_);
    comm_.emplace(handle_);
  }
  ~FirstRanks() {
    comm_.reset();
    MPI_Comm_free(&handle_);
  }
  FirstRanks(const FirstRanks&) = delete;
  FirstRanks& operator=(const FirstRanks&) = delete;
  bool takes_part() const { return takes_part_; }
  Comm& comm() { return *comm_; }

 private:
  bool takes_part_;
  MPI_Comm handle_ = MPI_COMM_NULL;
  std::optional<Comm> comm_;
};

TEST(Checkpoint, RestoresEveryBitAndTheProgress) {
  const SharedFolder folder;
  save_steps(folder / "c", {7});
  Training run(test_comm(), 0);
  auto checkpoints = run.checkpoints(folder / "c");
  EXPECT_EQ(checkpoints.restored().deck, "");
  const auto progress = checkpoints.restore(run.optimizer.slabs());
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(checkpoints.restored().deck, "[run]\nname = \"test\"\n");
  EXPECT_EQ(progress->step, 7);
  EXPECT_EQ(progress->cursor.shard, 3u);
  EXPECT_EQ(progress->cursor.offset, 1007u);
  EXPECT_EQ(progress->cursor.epoch, 2u);
  EXPECT_EQ(progress->train_seconds, 12.1);
  EXPECT_EQ(progress->tokens, 1ull << 40);
  EXPECT_EQ(progress->train_loss, 3.25);
  EXPECT_EQ(progress->mlp_maxima, progress_at(7).mlp_maxima);
  EXPECT_EQ(progress->fp8_maxima, progress_at(7).fp8_maxima);
  EXPECT_EQ(run.differences(7), 0u);
  verify_checkpoint(test_comm(), folder / "c/checkpoint_00000007.h5");
}

/// Muon keeps fewer second moments of a gate than the gate has elements.
TEST(Checkpoint, GatesInBf16LeaveOtherTensorsAsTheyAre) {
  Config config = small_config();
  config.model.residual = Residual::scaled;
  config.model.value_path = ValuePath::none;
  config.model.gated_layers = {0, 1, 3};
  config.model.smear = true;
  config.optimizer.normuon_beta = 0.95;
  config.group = {{.tensors = {"block.*.attention_gate"}}};
  config.group[0].rule = GroupRule::muon;
  config.group[0].master = config.group[0].moments = GroupFormat::bf16;
  Training run(test_comm(), 7, config);  // fills the slabs and rounds what the deck has in bf16
  for (const Slab<float>& slab : run.optimizer.slabs()) {
    const bool rounded = contains(slab.dataset, "attention_gate");
    for (std::size_t i = 0; i < slab.data.size(); ++i) {
      const float before = value(slab.dataset, slab.first_row * slab.cols + i, 7);
      ASSERT_EQ(slab.data[i], rounded ? kernels::round_to_bf16(before) : before) << slab.dataset << " " << i;
    }
  }
}

TEST(Checkpoint, AnyRankCountReadsWhatAnotherWrote) {
  const SharedFolder folder;
  save_steps(folder / "all", {1});
  for (int ranks = 1; ranks <= test_comm().size(); ++ranks) {
    FirstRanks some(ranks);
    const std::string by_some = folder / ("some" + std::to_string(ranks));
    if (some.takes_part()) {
      Training run(some.comm(), 2);
      run.checkpoints(by_some).save(progress_at(2), run.optimizer.slabs());
      ASSERT_TRUE(run.checkpoints(folder / "all").restore(run.optimizer.slabs()).has_value());
      EXPECT_EQ(run.differences(1), 0u) << "written by all, read by " << ranks;
    }
    test_comm().barrier();
    Training run(test_comm(), 0);
    ASSERT_TRUE(run.checkpoints(by_some).restore(run.optimizer.slabs()).has_value());
    EXPECT_EQ(run.differences(2), 0u) << "written by " << ranks << ", read by all";
  }
}

TEST(Checkpoint, TheFileDoesNotDependOnTheRankCount) {
  const SharedFolder folder;
  save_steps(folder / "all", {1});
  FirstRanks one(1);
  if (one.takes_part()) {
    Training run(one.comm(), 1);
    run.checkpoints(folder / "one").save(progress_at(1), run.optimizer.slabs());
    EXPECT_EQ(read_file(folder / "one/checkpoint_00000001.h5"), read_file(folder / "all/checkpoint_00000001.h5"));
  }
}

TEST(Checkpoint, KeepsTheNewestAndMilestones) {
  const SharedFolder folder;
  Training run(test_comm(), 0);
  run.config.checkpoint.keep = 2;
  run.config.checkpoint.milestone_every = 20;
  auto checkpoints = run.checkpoints(folder / "c");
  for (int step = 5; step <= 50; step += 5) checkpoints.save(progress_at(step), run.optimizer.slabs());
  on_root([&] {
    EXPECT_EQ(names(folder / "c"), (std::vector<std::string>{"checkpoint_00000020.h5", "checkpoint_00000040.h5",
                                                             "checkpoint_00000045.h5", "checkpoint_00000050.h5"}));
  });
  EXPECT_EQ(checkpoints.list().size(), 4u);
  // A run that went back to an earlier step keeps what it writes.
  checkpoints.save(progress_at(41), run.optimizer.slabs());
  EXPECT_TRUE(fs::exists(folder / "c/checkpoint_00000041.h5"));
}

TEST(Checkpoint, OwnOnesArePrunedAfterAnyNumberOfDecks) {
  const SharedFolder folder;
  Training run(test_comm(), 0);
  const auto saved_with = [&](int seed, long step) {
    Checkpoints checkpoints(test_comm(), run.config.checkpoint, folder / "c", fmt::format("[run]\nseed = {}\n", seed),
                            model_fingerprint(run.table.layout()));
    checkpoints.restore(run.optimizer.slabs());
    checkpoints.save(progress_at(step), run.optimizer.slabs());
  };
  run.config.checkpoint.keep = 200;
  for (int step = 1; step <= 70; ++step) saved_with(/*seed=*/2 + step, step);
  saved_with(/*seed=*/72, 71);  // the same once more
  EXPECT_EQ(read_checkpoint_header(test_comm(), folder / "c/checkpoint_00000071.h5").earlier_decks.size(), 69u * 17);
  run.config.checkpoint.keep = 2;
  saved_with(/*seed=*/3, 72);
  on_root([&] {
    EXPECT_EQ(names(folder / "c"), (std::vector<std::string>{"checkpoint_00000071.h5", "checkpoint_00000072.h5"}));
  });
}

TEST(Checkpoint, OnlyNamesThatTheProgramGivesAreItsOwn) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  const std::vector<std::string> copies = {"checkpoint_1.h5", "checkpoint_000000001.h5", "checkpoint_00000001.h5.1",
                                           "checkpoint_+0000001.h5", "checkpoint_00000001.h5.bak.partial"};
  on_root([&] {
    for (const std::string& copy : copies) fs::copy(folder / "c/checkpoint_00000001.h5", folder / ("c/" + copy));
  });
  Training run(test_comm(), 0);
  run.config.checkpoint.keep = 1;
  run.checkpoints(folder / "c").save(progress_at(2), run.optimizer.slabs());
  on_root([&] {
    std::vector<std::string> expected = copies;
    expected.push_back("checkpoint_00000002.h5");
    std::ranges::sort(expected);
    EXPECT_EQ(names(folder / "c"), expected);
  });
}

TEST(Checkpoint, NewerOnesAreSetAside) {
  const SharedFolder folder;
  save_steps(folder / "c", {1, 2, 3, 4});
  Training run(test_comm(), 0);
  run.config.checkpoint.restart = folder / "c/checkpoint_00000002.h5";
  auto checkpoints = run.checkpoints(folder / "c");
  ASSERT_TRUE(checkpoints.restore(run.optimizer.slabs()).has_value());
  on_root([&] {
    EXPECT_TRUE(checkpoints.continues_here());
    EXPECT_EQ(checkpoints.set_newer_aside(2).size(), 2u);
    EXPECT_EQ(names(folder / "c"), (std::vector<std::string>{"checkpoint_00000001.h5", "checkpoint_00000002.h5",
                                                             "checkpoint_00000003.h5.1", "checkpoint_00000004.h5.1"}));
  });
  run.config.checkpoint.restart = "auto";
  EXPECT_EQ(run.checkpoints(folder / "c").restore(run.optimizer.slabs())->step, 2);
  verify_checkpoint(test_comm(), folder / "c/checkpoint_00000004.h5.1");
}

TEST(Checkpoint, LongDecksAndShardListsAreStored) {
  const SharedFolder folder;
  Training run(test_comm(), 1);
  const std::string deck = "[run]\nname = \"" + std::string(300'000, 'x') + "\"\n", shards(500'000, 's');
  Checkpoints checkpoints(test_comm(), run.config.checkpoint, folder / "c", deck,
                          model_fingerprint(run.table.layout()));
  checkpoints.set_shards(shards);
  checkpoints.probe({.after = 0, .last = 100}, run.optimizer.slabs());
  on_root([&] { EXPECT_EQ(names(folder / "c"), std::vector<std::string>()); });
  checkpoints.save(progress_at(1), run.optimizer.slabs());
  ASSERT_TRUE(checkpoints.restore(run.optimizer.slabs()).has_value());
  EXPECT_EQ(checkpoints.restored().deck, deck);
  EXPECT_EQ(checkpoints.restored().shards, shards);
}

TEST(Checkpoint, ATokenizerIsStoredWhereOneIsKnown) {
  const SharedFolder folder;
  Training run(test_comm(), 1);
  auto checkpoints = run.checkpoints(folder / "c");
  checkpoints.set_shards("a.h5 10 0\n", {"bpe-300", 0x1234});
  const std::string with = checkpoints.save(progress_at(1), run.optimizer.slabs());
  verify_checkpoint(test_comm(), with);
  const CheckpointHeader header = read_checkpoint_header(test_comm(), with);
  EXPECT_EQ(header.tokenizer.name, "bpe-300");
  EXPECT_EQ(header.tokenizer.checksum, 0x1234u);
  checkpoints.set_shards("a.h5 10 0\n");
  const std::string without = checkpoints.save(progress_at(2), run.optimizer.slabs());
  verify_checkpoint(test_comm(), without);
  EXPECT_EQ(read_checkpoint_header(test_comm(), without).tokenizer.name, "");
  on_root([&] { h5::File::open_append(with).write_attribute("/", "tokenizer_checksum", std::uint64_t{1}); });
  EXPECT_TRUE(contains(checkpoint_error_of([&] { read_checkpoint_header(test_comm(), with); }), "checksum"));
}

/// With `enough` the trial writes all tensors, or a part of each one of which every rank has its share.
TEST(Checkpoint, ATrialForetellsItsTimeAndLeavesNothing) {
  const SharedFolder folder;
  Training run(test_comm(), 1);
  auto checkpoints = run.checkpoints(folder / "c");
  for (const std::uint64_t enough : {1u << 26, 1000u}) {
    EXPECT_GT(checkpoints.foretell_seconds(run.optimizer.slabs(), enough), 0);
    test_comm().barrier();
    on_root([&] { EXPECT_EQ(names(folder / "c"), std::vector<std::string>()); });
  }
  verify_checkpoint(test_comm(), checkpoints.save(progress_at(1), run.optimizer.slabs()));
}

TEST(Checkpoint, WhatWouldKeepItFromBeingWrittenIsFoundBefore) {
  const SharedFolder folder;
  Training run(test_comm(), 1);
  const auto refusal = [&](const std::string& name) {
    return checkpoint_error_of(
        [&] { run.checkpoints(folder / name).probe({.after = 0, .last = 100}, run.optimizer.slabs()); });
  };
  run.config.checkpoint.mpi_hints = "cb_nodes=1";
  EXPECT_TRUE(contains(refusal(std::string(230, 'd')), "too long for the path of a file that ranks share"));
  run.config.checkpoint.mpi_hints = "";
  on_root([&] { write_file(folder / "file", ""); });
  EXPECT_TRUE(contains(refusal("file"), "Not a directory"));
  {
    const FileSizeLimit limit(100'000);
    EXPECT_TRUE(contains(refusal("c"), "ulimit -f"));
  }
  run.config.checkpoint.every = 1;
  run.config.checkpoint.keep = 1'000'000'000;
  run.config.checkpoint.milestone_every = 1;
  const std::string space = checkpoint_error_of(
      [&] { run.checkpoints(folder / "c").probe({.after = 0, .last = 10'000'000}, run.optimizer.slabs()); });
  EXPECT_TRUE(contains(space, "checkpoints will need")) << space;
  on_root([&] { EXPECT_FALSE(fs::exists(folder / "c")); });
}

TEST(Checkpoint, FingerprintIsThatOfTheSortedLines) {
  ModelConfig model;
  model.vocabulary = 2;
  model.width = model.head_dim = 4;
  model.heads = 1;
  model.layers = 2;
  model.mlp_ratio = 1;
  model.value_path = ValuePath::none;
  // From docs/file_formats.md alone: files stay readable however the table arranges its tensors.
  EXPECT_EQ(model_fingerprint(ParameterTable(model).layout()), "0b9728f10726a89b");
}

TEST(Checkpoint, LeftoversOfInterruptedWritesGo) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  const std::string leftover = folder / "c/checkpoint_00000002.h5.partial", foreign = folder / "c/notes.partial";
  on_root([&] {
    write_file(leftover, "\x89HDF\r\n\x1a\nhalf");
    write_file(foreign, "of the user");
  });
  Training run(test_comm(), 0);
  run.checkpoints(folder / "c").probe({.after = 1, .last = 10}, run.optimizer.slabs());
  on_root([&] {
    EXPECT_FALSE(fs::exists(leftover));
    write_file(leftover, "");
  });
  save_steps(folder / "c", {3});
  EXPECT_FALSE(fs::exists(leftover));
  EXPECT_TRUE(fs::exists(foreign));
  // Space that was reserved, and nothing written yet.
  on_root([&] { write_file(leftover, std::string(100, '\0')); });
  save_steps(folder / "c", {4});
  EXPECT_FALSE(fs::exists(leftover));
}

TEST(Checkpoint, FilesOfUsersWithTheNameOfALeftoverStay) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  const std::string foreign = folder / "c/checkpoint_00000002.h5.partial";
  on_root([&] { write_file(foreign, "of the user"); });
  save_steps(folder / "c", {3});
  on_root([&] { EXPECT_EQ(fs::file_size(foreign), 11u); });
  save_steps(folder / "c", {2});
  on_root([&] {
    EXPECT_EQ(fs::file_size(foreign + ".1"), 11u);
    EXPECT_FALSE(fs::exists(foreign));
    EXPECT_TRUE(fs::exists(folder / "c/checkpoint_00000002.h5"));
  });
}

TEST(Checkpoint, AFailedSaveLeavesThePreviousOne) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  const auto expect_untouched = [&] {
    on_root([&] { EXPECT_EQ(names(folder / "c"), (std::vector<std::string>{"checkpoint_00000001.h5"})); });
    verify_checkpoint(test_comm(), folder / "c/checkpoint_00000001.h5");
  };
  Training run(test_comm(), 2);
  run.config.checkpoint.keep = 1;
  {
    const FileSizeLimit limit(100'000);  // the disk is full for all ranks
    const std::string error =
        checkpoint_error_of([&] { run.checkpoints(folder / "c").save(progress_at(2), run.optimizer.slabs()); });
    EXPECT_TRUE(contains(error, folder / "c/checkpoint_00000002.h5.partial")) << error;
  }
  expect_untouched();
  // The directory's name is taken by a file.
  on_root([&] { write_file(folder / "file", ""); });
  const std::string error =
      checkpoint_error_of([&] { run.checkpoints(folder / "file").save(progress_at(2), run.optimizer.slabs()); });
  EXPECT_TRUE(contains(error, folder / "file")) << error;
  expect_untouched();
}

TEST(Checkpoint, RanksAgreeWhenOneCannotWrite) {
  SKIP_WHERE_RANKS_WAIT_FOR_FAILED_WRITES();
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  for (int unlucky = 0; unlucky < test_comm().size(); ++unlucky) {
    Training run(test_comm(), 2);
    double failed = 0;
    {
      std::optional<FileSizeLimit> limit;
      if (test_comm().rank() == unlucky) limit.emplace(100'000);
      try {
        run.checkpoints(folder / "c").save(progress_at(2), run.optimizer.slabs());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::checkpoint);
        failed = 1;
      }
    }
    const double failures = test_comm().all_reduce(failed, Reduce::sum);
    EXPECT_TRUE(failures == 0 || failures == test_comm().size()) << failures << " ranks failed";
    EXPECT_EQ(fs::exists(folder / "c/checkpoint_00000002.h5"), failures == 0);
    ASSERT_TRUE(run.checkpoints(folder / "c").restore(run.optimizer.slabs()).has_value());
    EXPECT_EQ(run.differences(failures == 0 ? 2 : 1), 0u);
    on_root([&] { fs::remove(folder / "c/checkpoint_00000002.h5"); });
  }
}

}  // namespace
}  // namespace nanorun
