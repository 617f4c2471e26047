#pragma once
// The heartbeats of all ranks, as the watchdog of one rank keeps and reads them.
//
// The ranks of a node keep theirs in memory that they share. The node's writer, its lowest rank that is alive, writes
// them into a file for other nodes. While ranks of a node wait too long in a collective, its writer reads files of
// lower nodes, nearest first, until it finds a node that lives and waits too, and leaves the rest to that one. Where
// there is none, it reads the files of all nodes, and all ranks of its node learn whom to blame. So a file is opened a
// few times in all, whatever the number of nodes. The clocks of nodes are not compared.

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/comm/culprit.hpp"
#include "src/comm/heartbeat_files.hpp"
#include "src/comm/node_layout.hpp"

namespace nanorun {

/// What a rank shows the others of its node. Lies in memory that they share, at first all zeros.
class alignas(64) HeartbeatSlot {
 public:
  std::atomic<std::uint64_t> beats, collectives;
  std::atomic<Activity> activity;
  std::atomic<long> step;
  std::atomic<bool> writes_files;      ///< as the collective does in which the rank waits
  std::atomic<double> frozen_seconds;  ///< for which the rank has waited for the file system of the heartbeats
  std::atomic<bool> left;              ///< the rank has ended its heartbeats
  std::atomic<bool> node_has_spoken;   ///< of the node's first slot alone: see Comm::speaks_first()

  Heartbeat heartbeat() const { return {beats, collectives, activity, step}; }
  /// For the rank itself. `collective`: the number of the collective that takes too long.
  void publish(const Culprit& culprit, std::uint64_t collective);
  /// The culprit, if the rank has published one for this collective or a later one.
  std::optional<Culprit> culprit(std::uint64_t collective) const;

 private:
  using Words = std::array<std::uint64_t, sizeof(Culprit) / sizeof(std::uint64_t)>;

  std::atomic<std::uint64_t> version_;  ///< odd while the rank publishes
  std::atomic<std::uint64_t> collective_;
  std::array<std::atomic<std::uint64_t>, std::tuple_size_v<Words>> words_;
};

class Heartbeats {
 public:
  /// `layout`: nodes whose ranks share memory. `node`: the ranks of this rank's node by their places; must outlive it.
  /// `hosts`: of the nodes, for text(); none where there is one.
  Heartbeats(std::string directory, const NodeLayout& layout, int rank, std::span<HeartbeatSlot> node,
             std::vector<std::string> hosts = {});
  /// Ends the heartbeats of this rank. The last rank of a node removes its file, and the last node the directory.
  ~Heartbeats();
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;

  /// The lowest rank of the node writes its file. Throws Error(output).
  void begin() const;
  /// What a rank does in each interval: it finds out whether it writes for its node, and does what the writer does.
  /// Waits for the file system.
  void round();

  HeartbeatSlot& own() { return node_[place_]; }
  /// Whom a rank of this node has found to be the cause that the collective of this number takes too long.
  std::optional<Culprit> culprit(std::uint64_t collective) const;
  /// What a message says of the culprit.
  std::string text(const Culprit& culprit) const;
  /// The longest time for which a rank of this node has waited for the file system.
  double frozen_seconds() const;
  const std::string& directory() const { return files_.directory(); }
  /// How many files this rank has opened to read them.
  int files_read() const { return files_read_; }

 private:
  /// The heartbeats of all ranks, and beats of this node as its file has them.
  struct View {
    std::vector<Heartbeat> ranks;
    std::uint64_t beats_in_file = 0;
  };
  struct Asked {
    int node;
    std::vector<Heartbeat> then;
  };
  /// What the writer does about a collective that takes too long.
  struct Search {
    Search(std::uint64_t collective, int node) : collective(collective), lowest(node) {}

    std::uint64_t collective;
    int lowest;                ///< nodes from here on, up to this one, have been asked
    std::vector<Asked> asked;  ///< the last of them, nearest first
    bool left_to_another = false;
    std::optional<View> then;  ///< this node is the one to read all files
    int rounds = 0;            ///< since nodes were asked, or all files read
  };

  bool is_writer();
  std::optional<int> longest_waiting() const;
  void search(int waiting);
  void ask_further_nodes(Search& search);
  bool waits_too(const Asked& asked);
  void judge(const View& then, int waiting);
  std::vector<Heartbeat> read(int node);
  View view();

  const HeartbeatFiles files_;
  const NodeLayout layout_;
  const std::vector<std::string> hosts_;
  const int node_number_, place_;
  const std::span<HeartbeatSlot> node_;
  std::vector<std::uint64_t> seen_;  ///< beats of the lower ranks of the node in the last round
  std::vector<int> still_;           ///< rounds for which they have not changed
  std::optional<Search> search_;
  int files_read_ = 0;
};

}  // namespace nanorun
