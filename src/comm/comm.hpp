#pragma once
// Collectives on values in host memory. Every collective is watched: if one takes longer than the timeout, the job ends
// with a message that names the collective, the step and the rank to blame.

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/launch.hpp"
#include "src/comm/node_layout.hpp"
#include "src/comm/node_memory.hpp"
#include "src/comm/watchdog.hpp"

namespace nanorun {

/// Name and version of the MPI library, "Open MPI v4.1.4".
std::string mpi_version();

/// Whether a program that srun starts without PMIx dies in MPI_Init of this MPI library. Open MPI does this if it was
/// built without Slurm's own PMI. May be called before MPI_Init.
bool mpi_needs_pmix();

enum class Reduce { sum, min, max };

/// An MPI communicator. All member functions from barrier() on are collective.
class Comm {
 public:
  /// Collective.
  explicit Comm(MPI_Comm comm);
  /// Collective where split() has made it.
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool root() const { return rank_ == 0; }
  /// Number of ranks on this rank's node, which share memory; this rank's number among them; and the lowest of them.
  int ranks_of_node() const { return ranks_of_node_; }
  int rank_on_node() const { return rank_on_node_; }
  int first_rank_of_node() const { return first_rank_of_node_; }
  /// Collective. How the ranks lie on nodes; those of a node share memory.
  NodeLayout nodes();
  MPI_Comm handle() const { return comm_; }
  /// This rank in messages, "rank 3 on node n7", with its number among all ranks.
  std::string name() const;
  /// Whether this rank is the first of its node to ask. Of ranks that give up alone at the same time one speaks for its
  /// node. Not for communicators that split() has made.
  bool speaks_first() const;
  /// Collective. A communicator of the ranks that give the same `color`, in the order of `key`; null where it is
  /// negative. This communicator watches its collectives and outlives it.
  std::unique_ptr<Comm> split(int color, int key);

  /// Seconds that a collective may take.
  void set_timeout(double seconds);
  /// Bytes that one call of MPI broadcasts or gathers at most, alike on all ranks; larger data travel in pieces. MPI
  /// counts in ints, so that 1 GiB, the default, is the most.
  void set_piece_bytes(std::size_t bytes) { piece_bytes_ = bytes; }
  /// Sets the step that the watchdog's message names.
  void set_step(long step);
  long step() const;
  /// Collective. Lets the watchdogs of the ranks exchange heartbeats in `directory`, which all ranks see. Without it
  /// the message of a timeout does not name the rank to blame. Throws Error(output) on all ranks alike.
  void share_heartbeats(const std::string& directory);
  /// The watchdog that has found the rank to blame, and that of rank 0, append the message with which they end the job
  /// to this file, too.
  void set_log(const std::string& path);
  /// Watches a collective that another library makes on handle(), as long as the result lives.
  [[nodiscard]] Watchdog::Guard watch(const char* what);
  /// Watches that this rank does not hang while it computes, as long as the result lives.
  [[nodiscard]] Watchdog::Work watch_work();

  void barrier();
  /// Copies from rank `root` to all ranks.
  void broadcast(std::span<std::byte> data, int root = 0);
  std::string broadcast(const std::string& text, int root = 0);
  /// Reduces over the ranks, in place. T = double or std::uint64_t.
  template <class T>
  void all_reduce(std::span<T> data, Reduce op);
  template <class T>
  T all_reduce(T value, Reduce op) {
    all_reduce(std::span<T>(&value, 1), op);
    return value;
  }
  /// The value of each rank, on all ranks.
  std::vector<double> all_gather(double value) { return all_gather(std::span<const double>(&value, 1)); }
  /// As many values of each rank, on all ranks, by rank. T = double or std::uint64_t.
  template <class T>
  std::vector<T> all_gather(std::span<const T> values);
  /// As many values of each rank, on rank 0 by rank; other ranks get none.
  std::vector<double> gather(std::span<const double> values);
  /// Gathers a text of any size from each rank on rank 0; other ranks get none.
  std::vector<std::string> gather(const std::string& text);
  /// Runs `work` on every rank; it must not use this communicator. If it throws an Error on some ranks, all ranks throw
  /// the Error of the lowest of these ranks, with its cause and with Scope::all_ranks. If work can fail on one node
  /// alone, its message should name the rank by name().
  void together(const std::function<void()>& work);

 private:
  Comm(MPI_Comm comm, std::shared_ptr<Watchdog> watchdog, int rank_in_messages);
  std::vector<std::string> hosts_of(const NodeLayout& nodes);
  void find_place_on_node();

  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  int ranks_of_node_ = 1, rank_on_node_ = 0, first_rank_of_node_ = 0;
  int rank_in_messages_ = 0;
  std::size_t piece_bytes_ = std::size_t{1} << 30;
  bool owns_comm_ = false;
  std::unique_ptr<NodeMemory> node_memory_;  ///< holds slots_; without those where split() has made this communicator
  std::span<HeartbeatSlot> slots_;           ///< of the ranks of this node
  std::shared_ptr<Watchdog> watchdog_;
};

}  // namespace nanorun
