#pragma once
// Ends the job when a collective outlasts its timeout, or when this rank hangs while it computes, and names the rank to
// blame.
//
// To find the rank, the watchdogs exchange heartbeats (src/comm/heartbeats.hpp): that of a rank which is stopped or
// dead no longer changes, and that of a rank which lives and hangs elsewhere counts fewer collectives. The watchdogs of
// one node find the rank; those of others give them some time, the grace, before they end the job without a name. A
// thread of its own reads and writes the files of heartbeats, since a file system that hangs must not hold up the end
// of the job.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "src/comm/heartbeats.hpp"

namespace nanorun {

class Watchdog {
 public:
  /// `abort` ends the job and does not return; it is called on a thread of the watchdog.
  Watchdog(int rank, int ranks, std::function<void()> abort);

  /// Whose collective it is. Those of all ranks are counted, so that ranks which fall behind are found.
  enum class Scope { all_ranks, some_ranks };

  /// Watches a collective from construction to destruction.
  class Guard {
   public:
    Guard(Watchdog& dog, const char* what, Scope scope) : dog_(dog) { dog_.arm(what, scope); }
    ~Guard() { dog_.disarm(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Watchdog& dog_;
  };

  /// Expects signs of life (kernels/device/life.hpp) from construction to destruction, outside of collectives.
  class Work {
   public:
    explicit Work(Watchdog& dog) : dog_(dog) { dog_.working_ = true; }
    ~Work() { dog_.working_ = false; }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    Watchdog& dog_;
  };

  void set_timeout(double seconds);
  /// Sets the step that the message names.
  void set_step(long step) { step_ = step; }
  long step() const { return step_; }
  /// Starts the heartbeats of this rank in `directory`, which exists. The others: as Heartbeats takes them; the memory
  /// of `node` must outlive the watchdog. Throws Error(output) if the node's file cannot be written.
  void share_heartbeats(const std::string& directory, const NodeLayout& layout, std::span<HeartbeatSlot> node,
                        std::vector<std::string> hosts);
  /// The rank that has found the culprit, or rank 0, appends the message that ends the job to this file, too.
  void set_log(const std::string& path);

 private:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

  void arm(const char* what, Scope scope);
  void disarm();
  void watch(std::stop_token stop);
  void beat(std::stop_token stop);
  void publish();
  Seconds interval() const;
  Seconds grace() const;
  std::string frozen_files() const;
  void expire_in_time(Seconds waited);
  [[noreturn]] void expire_at_work();
  enum class Noted { no, yes };  ///< whether the log is to have a message
  [[noreturn]] void end_job(const std::string& message, Noted noted);
  void note(const std::string& message);
  Seconds max_silence() const;

  const int rank_, ranks_;
  const std::function<void()> abort_;
  std::atomic<long> step_{0};
  std::atomic<bool> working_{false};

  std::mutex mutex_;  ///< guards the members down to log_
  std::condition_variable_any wake_;
  const char* what_ = nullptr;  ///< the collective that is under way
  Clock::time_point since_;
  std::uint64_t collectives_ = 0;
  Seconds timeout_{300};
  std::optional<Heartbeats> heartbeats_;
  std::optional<Clock::time_point> at_files_;  ///< since when the heartbeats' thread waits for the file system
  std::string log_;                            ///< path; empty: none
  std::jthread watching_, beating_;            ///< last members, so that they end before what they use
};

}  // namespace nanorun
