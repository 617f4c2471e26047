// Checkpoints that threads write while the ranks train.

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "tests/support/environment.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/failed_writes.hpp"
#include "tests/support/file_size_limit.hpp"
#include "tests/support/saved_training.hpp"

namespace nanorun {
namespace {

TEST(BackgroundCheckpoint, IsTheFileOfASaveThatIsWaitedFor) {
  const SharedFolder folder;
  save_steps(folder / "waited", {7});
  Training run(test_comm(), 7);
  Checkpoints checkpoints = run.checkpoints(folder / "c");
  checkpoints.begin(progress_at(7), run.optimizer.slabs());
  EXPECT_TRUE(checkpoints.pending());
  EXPECT_EQ(checkpoints.pending_step(), 7);
  EXPECT_EQ(checkpoints.finish(), folder / "c/checkpoint_00000007.h5");
  EXPECT_FALSE(checkpoints.pending());
  on_root([&] {
    EXPECT_EQ(names(folder / "c"), (std::vector<std::string>{"checkpoint_00000007.h5"}));
    EXPECT_EQ(read_file(folder / "c/checkpoint_00000007.h5"), read_file(folder / "waited/checkpoint_00000007.h5"));
  });
}

TEST(BackgroundCheckpoint, HoldsWhatTheRunHadAtItsBeginning) {
  const SharedFolder folder;
  Training run(test_comm(), 7);
  Checkpoints checkpoints = run.checkpoints(folder / "c");
  checkpoints.begin(progress_at(7), run.optimizer.slabs());
  fill(run.optimizer.slabs(), 8);  // as training changes them
  checkpoints.finish();
  ASSERT_TRUE(checkpoints.restore(run.optimizer.slabs()).has_value());
  EXPECT_EQ(run.differences(7), 0u);
}

TEST(BackgroundCheckpoint, HasAnotherNameUntilItIsFinished) {
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  Training run(test_comm(), 2);
  run.config.checkpoint.keep = 1;
  Checkpoints checkpoints = run.checkpoints(folder / "c");
  checkpoints.begin(progress_at(2), run.optimizer.slabs());
  while (!checkpoints.written()) std::this_thread::yield();
  on_root([&] {
    EXPECT_EQ(names(folder / "c"),
              (std::vector<std::string>{"checkpoint_00000001.h5", "checkpoint_00000002.h5.partial"}));
  });
  EXPECT_EQ(run.checkpoints(folder / "c").restore(run.optimizer.slabs())->step, 1);
  checkpoints.finish();
  on_root([&] { EXPECT_EQ(names(folder / "c"), (std::vector<std::string>{"checkpoint_00000002.h5"})); });
}

TEST(BackgroundCheckpoint, RanksAgreeWhenOneCannotWrite) {
  SKIP_WHERE_RANKS_WAIT_FOR_FAILED_WRITES();
  const SharedFolder folder;
  save_steps(folder / "c", {1});
  for (int unlucky = 0; unlucky < test_comm().size(); ++unlucky) {
    Training run(test_comm(), 2);
    Checkpoints checkpoints = run.checkpoints(folder / "c");
    std::optional<FileSizeLimit> limit;
    if (test_comm().rank() == unlucky) limit.emplace(20'000);
    const std::string error = checkpoint_error_of([&] {
      checkpoints.begin(progress_at(2), run.optimizer.slabs());
      checkpoints.finish();
    });
    EXPECT_TRUE(contains(error, folder / "c/checkpoint_00000002.h5.partial")) << error;
    limit.reset();
    EXPECT_FALSE(checkpoints.pending());
    on_root([&] { EXPECT_EQ(names(folder / "c"), (std::vector<std::string>{"checkpoint_00000001.h5"})); });
  }
}

}  // namespace
}  // namespace nanorun
