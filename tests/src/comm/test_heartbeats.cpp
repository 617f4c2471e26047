#include "src/comm/heartbeats.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/support/error_of.hpp"
#include "tests/support/temp_folder.hpp"

namespace nanorun {
namespace {

/// A job whose ranks go through the rounds of their heartbeats one after the other, in this process.
class Job {
 public:
  explicit Job(const NodeLayout& layout, const std::vector<std::string>& hosts = {}) : layout_(layout) {
    for (int node = 0; node < layout.nodes(); ++node)
      nodes_.push_back(std::make_unique<HeartbeatSlot[]>(layout.ranks_on(node)));
    HeartbeatFiles(directory()).clear(layout.ranks());
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const int node = layout.node_of(rank);
      const std::span slots(nodes_[node].get(), static_cast<std::size_t>(layout.ranks_on(node)));
      ranks_.push_back(std::make_unique<Heartbeats>(directory(), layout, rank, slots, hosts));
      ranks_.back()->begin();
      set(rank, {.collectives = 5, .activity = Activity::inside, .step = 3});
    }
  }

  std::string directory() const { return folder_ / "heartbeats"; }
  HeartbeatSlot& slot(int rank) { return ranks_[rank]->own(); }
  void set(int rank, const Heartbeat& h) {
    slot(rank).collectives = h.collectives;
    slot(rank).activity = h.activity;
    slot(rank).step = h.step;
  }
  /// All ranks, but for those that `is_stopped` names, go through so many rounds.
  template <class IsStopped>
  void rounds(int count, const IsStopped& is_stopped) {
    for (int round = 0; round < count; ++round) {
      for (int rank = 0; rank < layout_.ranks(); ++rank) {
        if (is_stopped(rank)) continue;
        ++slot(rank).beats;
        ranks_[rank]->round();
      }
    }
  }
  void rounds(int count) {
    rounds(count, [](int) { return false; });
  }
  /// Ranks in the collective wait for so much of the timeout.
  void wait(Activity activity) {
    for (int rank = 0; rank < layout_.ranks(); ++rank) {
      if (slot(rank).activity != Activity::outside) slot(rank).activity = activity;
    }
  }
  /// As in the time of a timeout of 64 s: half of it until the ranks are late, then 6 rounds, then 2 more.
  template <class IsStopped>
  void time_out(const IsStopped& is_stopped) {
    rounds(8, is_stopped);
    wait(Activity::late);
    rounds(6, is_stopped);
    wait(Activity::due);
    rounds(2, is_stopped);
  }

  /// Whom a rank blames for collective 5; "" where it does not know.
  std::string said(int rank) const {
    const std::optional<Culprit> culprit = ranks_[rank]->culprit(5);
    return culprit ? text_of(*culprit, "beats") : "";
  }
  /// The same as a message has it.
  std::string message(int rank) const { return ranks_[rank]->text(ranks_[rank]->culprit(5).value_or(Culprit{})); }
  /// The nodes of which each rank blames somebody.
  std::vector<int> nodes_that_know() const {
    std::vector<int> nodes;
    for (int node = 0; node < layout_.nodes(); ++node) {
      if (!said(layout_.rank_at(node, 0)).empty()) nodes.push_back(node);
    }
    return nodes;
  }
  int files_read() const {
    int sum = 0;
    for (const auto& rank : ranks_) sum += rank->files_read();
    return sum;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory()))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }
  void leave(int rank) { ranks_[rank].reset(); }

 private:
  TempFolder folder_;
  const NodeLayout layout_;
  std::vector<std::unique_ptr<HeartbeatSlot[]>> nodes_;
  std::vector<std::unique_ptr<Heartbeats>> ranks_;
};

TEST(Heartbeats, AreOneFileForEachNode) {
  Job job(NodeLayout::consecutive(8, 3));
  EXPECT_EQ(job.files(), (std::vector<std::string>{"0", "1", "2"}));
  job.rounds(2);
  const std::vector<Heartbeat> last = HeartbeatFiles(job.directory()).read(2, 2);
  ASSERT_EQ(last.size(), 2);
  EXPECT_EQ(last[0].beats, 2);
  EXPECT_EQ(last[1].collectives, 5);
  EXPECT_EQ(last[1].activity, Activity::inside);
  EXPECT_EQ(last[1].step, 3);
  EXPECT_EQ(job.files_read(), 0);
}

TEST(Heartbeats, LeaveNothing) {
  Job job(NodeLayout::consecutive(4, 2));
  job.leave(0);
  EXPECT_EQ(job.files(), (std::vector<std::string>{"0", "1"}));
  job.leave(3);
  job.leave(1);
  EXPECT_EQ(job.files(), (std::vector<std::string>{"1"}));
  job.leave(2);
  EXPECT_FALSE(std::filesystem::exists(job.directory()));
}

TEST(Heartbeats, NameARankThatIsStopped) {
  for (const int per_node : {0, 1, 2, 3, 4}) {
    for (int stopped = 0; stopped < 8; ++stopped) {
      Job job(NodeLayout::consecutive(8, per_node));
      job.rounds(4);
      job.time_out([&](int rank) { return rank == stopped; });
      const std::vector<int> know = job.nodes_that_know();
      ASSERT_EQ(know.size(), 1) << per_node << " per node, rank " << stopped;
      // The lowest node that lives.
      EXPECT_EQ(know.front(), per_node == 1 && stopped == 0 ? 1 : 0);
      const int rank = per_node == 1 && stopped == 0 ? 1 : stopped == 0 ? 1 : 0;
      EXPECT_EQ(job.said(rank), "no sign of life from rank " + std::to_string(stopped) + ", stopped or dead");
    }
  }
}

TEST(Heartbeats, NameTheHostsOfSeveralNodes) {
  Job job(NodeLayout::consecutive(6, 2), {"n7", "n8", "n9"});
  EXPECT_EQ(job.message(0), "another rank has died or hangs");
  job.rounds(4);
  job.time_out([](int rank) { return rank == 3 || rank == 4; });
  EXPECT_EQ(job.message(0), "no sign of life from ranks 3, 4 on nodes n8, n9, stopped or dead");
}

TEST(Heartbeats, NameTheRanksOfANodeThatIsStopped) {
  Job job(NodeLayout::consecutive(8, 2));
  job.rounds(4);
  job.time_out([](int rank) { return rank < 2; });
  EXPECT_EQ(job.nodes_that_know(), std::vector{1});
  EXPECT_EQ(job.said(3), "no sign of life from ranks 0, 1, stopped or dead");
}

/// Whether its node has other ranks, which wait, or not.
TEST(Heartbeats, NameARankThatHangsOutsideOfCollectives) {
  for (const int per_node : {0, 1, 2}) {
    for (const int hangs : {0, 3}) {
      Job job(NodeLayout::consecutive(4, per_node));
      job.set(hangs, {.collectives = 4, .activity = Activity::outside, .step = 3});
      job.time_out([](int) { return false; });
      const std::vector<int> know = job.nodes_that_know();
      ASSERT_EQ(know.size(), 1) << per_node << " per node, rank " << hangs;
      EXPECT_EQ(job.said(know.front() * std::max(per_node, 1)),
                "rank " + std::to_string(hangs) + " of step 3 hangs outside of collectives");
    }
  }
}

/// The next rank of the node writes its file, and takes part in the search.
TEST(Heartbeats, AreWrittenByTheLowestRankThatLives) {
  Job job(NodeLayout::consecutive(4, 2));
  const auto is_stopped = [](int rank) { return rank == 2; };
  job.rounds(20, is_stopped);
  const std::vector<Heartbeat> second = HeartbeatFiles(job.directory()).read(1, 2);
  EXPECT_EQ(second[0].beats, 0);
  EXPECT_EQ(second[1].beats, 20);
}

/// Of nodes that come to a collective later than others.
TEST(Heartbeats, AreJudgedByANodeThatIsLateItself) {
  Job job(NodeLayout::consecutive(3, 1));
  job.slot(0).activity = Activity::outside;
  job.time_out([](int rank) { return rank == 1; });
  EXPECT_EQ(job.nodes_that_know(), std::vector{2});
  EXPECT_EQ(job.said(2), "no sign of life from rank 1, stopped or dead");
}

TEST(Heartbeats, ForgetACollectiveThatEnds) {
  Job job(NodeLayout::consecutive(4, 2));
  job.time_out([](int rank) { return rank == 1; });
  EXPECT_EQ(job.said(0), "no sign of life from rank 1, stopped or dead");
  for (int rank = 0; rank < 4; ++rank) job.set(rank, {.collectives = 6, .activity = Activity::inside, .step = 3});
  EXPECT_EQ(job.slot(0).culprit(6), std::nullopt);
  job.rounds(1);
  const int read = job.files_read();
  job.rounds(10);
  EXPECT_EQ(job.files_read(), read);
}

TEST(Heartbeats, SayNothingOfOtherNodesWhereTheDirectoryTakesNone) {
  Job job(NodeLayout::consecutive(4, 2));
  job.rounds(4);
  std::filesystem::rename(job.directory(), job.directory() + ".aside");
  job.time_out([](int rank) { return rank == 2; });
  EXPECT_EQ(job.said(0), "another rank has died or hangs, and beats takes no heartbeats that would tell which");
  EXPECT_EQ(job.said(3), "no sign of life from rank 2, stopped or dead");  // which is on its own node
}

/// In all: one for each node that lives, some more for those that do not, and a few times all by one rank.
TEST(Heartbeats, OpenAFewFilesForEachNode) {
  for (const int nodes : {16, 64, 256}) {
    Job job(NodeLayout::consecutive(2 * nodes, 2));
    job.rounds(4);
    job.time_out([&](int rank) { return rank == nodes; });
    EXPECT_EQ(job.nodes_that_know(), std::vector{0});
    // Node 0 reads all when it is late, and in the two rounds in which it is due; the others their neighbour, twice.
    EXPECT_EQ(job.files_read(), 3 * nodes + 2 * (nodes - 1));
  }
}

TEST(Heartbeats, OpenAFewFilesWhereManyNodesAreStopped) {
  constexpr int nodes = 64;
  Job job(NodeLayout::consecutive(nodes, 1));
  job.rounds(4);
  // Every fourth node lives, and the last ones.
  job.time_out([](int rank) { return rank % 4 != 0 && rank < 60; });
  EXPECT_EQ(job.nodes_that_know(), std::vector{0});
  EXPECT_LT(job.files_read(), 8 * nodes);
  EXPECT_EQ(job.said(0), "no sign of life from ranks 1, 2, 3, 5, 6, 7, 9, 10, ..., stopped or dead");
}

TEST(HeartbeatFiles, TellHeartbeatsFromOtherFiles) {
  TempFolder folder;
  const HeartbeatFiles files(folder / "heartbeats");
  files.require_free(4);
  files.clear(4);
  files.write(0, std::vector<Heartbeat>(3, {.beats = 1, .collectives = 2, .activity = Activity::late, .step = 3}));
  const auto write = [&](const std::string& text) { std::ofstream(folder / "heartbeats/1") << text; };
  write("");
  files.require_free(4);
  write(std::string(64, '0') + "\n");  // as an earlier version wrote it for a rank
  files.require_free(4);
  for (const std::string& text : {std::string("precious"), std::string(63, '0') + "\n", std::string(130, '0'),
                                  std::string(64, 'x') + "\n", std::string(31, '0') + "\n" + std::string(33, '0')}) {
    write(text);
    EXPECT_EQ(error_of([&] { files.require_free(4); }, ExitCode::output),
              folder / "heartbeats/1: is no heartbeat of a run: move it away");
    files.require_free(1);
  }
  write("");
  files.clear(4);
  EXPECT_TRUE(std::filesystem::is_empty(folder / "heartbeats"));
  EXPECT_EQ(files.read(0, 3).size(), 3);
  EXPECT_EQ(files.read(0, 3)[2].beats, 0);
}

TEST(HeartbeatFiles, LeaveAloneWhatIsPutInTheirPlace) {
  namespace fs = std::filesystem;
  TempFolder folder;
  const HeartbeatFiles files(folder / "heartbeats");
  files.clear(2);
  const auto text_of = [](const fs::path& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto beat = [&](std::uint64_t beats) { files.write(0, std::vector<Heartbeat>(1, {.beats = beats})); };
  beat(1);
  fs::create_hard_link(folder / "heartbeats/0", folder / "kept");
  const std::string kept = text_of(folder / "kept");
  beat(2);
  EXPECT_EQ(text_of(folder / "kept"), kept);
  EXPECT_EQ(files.read(0, 1)[0].beats, 2);
  std::ofstream(folder / "heartbeats/0", std::ios::trunc) << "precious";
  EXPECT_EQ(error_of([&] { beat(3); }, ExitCode::output),
            folder / "heartbeats/0: is no heartbeat of a run: move it away");
  files.remove(0);
  EXPECT_EQ(text_of(folder / "heartbeats/0"), "precious");
}

}  // namespace
}  // namespace nanorun
