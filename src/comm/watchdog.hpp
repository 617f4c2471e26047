#pragma once
// Ends the job when a collective outlasts its timeout, or when this rank hangs while it computes, and names the rank to
// blame.
//
// To find the rank, each watchdog keeps a line about its rank, the heartbeat, in a file of its own. All ranks see the
// directory of these files, and read the others' lines while a collective takes long. A line that no longer changes
// belongs to a rank that is stopped or dead. A line that counts fewer collectives belongs to a rank that lives and
// hangs elsewhere. Files reach other nodes when MPI itself hangs, and need no open ports. All lines have one length and
// each access opens and closes the file, so the close-to-open consistency of NFS is enough. The clocks of nodes are not
// compared. A thread of its own reads and writes the files, since a file system that hangs must not hold up the end of
// the job.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "src/base/output_file.hpp"

namespace nanorun {

class Watchdog {
 public:
  /// `abort` ends the job and does not return; it is called on a thread of the watchdog.
  Watchdog(int rank, int ranks, std::function<void()> abort);
  /// Removes this rank's heartbeat file, and the directory with the last of them.
  ~Watchdog();

  /// Watches a collective from construction to destruction.
  class Guard {
   public:
    Guard(Watchdog& dog, const char* what) : dog_(dog) { dog_.arm(what); }
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
  /// Throws Error(output) where something else stands in the place of the directory of heartbeats, which may be absent,
  /// or of the heartbeat of one of so many ranks. Changes nothing.
  static void require_free_heartbeats(const std::string& directory, int ranks);
  /// Makes the directory of heartbeats for so many ranks, and removes those that a job which crashed has left there.
  /// Warns of what is left alone. Throws as require_free_heartbeats() does.
  static void clear_heartbeats(const std::string& directory, int ranks);
  /// Starts the heartbeats of this rank in `directory`, which exists. Throws Error(output) if its file cannot be
  /// written.
  void share_heartbeats(const std::string& directory);
  /// Appends the message that ends the job to this file, too. Throws Error(output) if it cannot be opened.
  void set_log(const std::string& path);

 private:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

  /// The numbers in a rank's line.
  struct Heartbeat {
    std::uint64_t beats = 0;        ///< lines written
    std::uint64_t collectives = 0;  ///< collectives begun
    bool inside = false;            ///< the rank is in a collective
    long step = 0;
  };

  void arm(const char* what);
  void disarm();
  void watch(std::stop_token stop);
  void beat(std::stop_token stop);
  std::string frozen_files() const;
  [[noreturn]] void expire();
  [[noreturn]] void expire_at_work();
  [[noreturn]] void end_job(const std::string& message);
  void note(const std::string& message);
  Seconds max_silence() const;

  void write(const Heartbeat& heartbeat) const;
  std::vector<Heartbeat> read_all() const;
  std::string find_culprit(const std::vector<Heartbeat>& then, const std::vector<Heartbeat>& now,
                           bool writes_files) const;

  const int rank_, ranks_;
  const std::function<void()> abort_;
  std::string directory_;
  std::atomic<long> step_{0};
  std::atomic<bool> working_{false};

  std::mutex mutex_;  ///< guards the members down to log_
  std::condition_variable_any wake_;
  const char* what_ = nullptr;  ///< the collective that is under way
  Clock::time_point since_;
  std::uint64_t collectives_ = 0;
  Seconds timeout_{300};
  std::string culprit_;
  std::optional<Clock::time_point> at_files_;  ///< since when the heartbeats' thread waits for the file system
  std::optional<AppendFile> log_;
  std::jthread watching_, beating_;  ///< last members, so that they end before what they use
};

}  // namespace nanorun
