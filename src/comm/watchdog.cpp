#include "src/comm/watchdog.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <future>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include "kernels/device/life.hpp"
#include "src/base/error.hpp"
#include "src/base/files_own.hpp"

namespace nanorun {

namespace {

constexpr const char* unknown_culprit = "another rank has died or hangs";

constexpr const char* line_format = "{:>20} {:>20} {:>1} {:>20}\n";  ///< line of a heartbeat file
constexpr std::uint64_t max_line = 256;                              ///< bytes

/// Name of a rank's file in the directory of heartbeats.
std::string file_of(int rank) { return std::to_string(rank); }

/// Whether a rank has written the text, or was to write it.
bool is_heartbeat(const std::string& text) {
  return text.empty() || (text.size() == fmt::format(line_format, 0, 0, 0, 0).size() && text.back() == '\n' &&
                          text.find_first_not_of("0123456789 \n") == std::string::npos);
}

/// Whether the file of one of so many ranks has the name.
bool is_of_rank(const std::string& name, int ranks) {
  int rank = -1;
  const char* const end = name.data() + name.size();
  return std::from_chars(name.data(), end, rank).ptr == end && rank >= 0 && rank < ranks && name == file_of(rank);
}

std::string list_of(const std::vector<int>& ranks) {
  const auto end = ranks.begin() + std::min<std::ptrdiff_t>(std::ssize(ranks), 8);
  return fmt::format("{} {}{}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks.begin(), end, ", "),
                     end == ranks.end() ? "" : ", ...");
}

}  // namespace

Watchdog::Watchdog(int rank, int ranks, std::function<void()> abort)
    : rank_(rank),
      ranks_(ranks),
      abort_(std::move(abort)),
      culprit_(unknown_culprit),
      watching_([this](std::stop_token stop) { watch(stop); }) {}

Watchdog::~Watchdog() {
  if (directory_.empty()) return;
  if (beating_.joinable()) {
    beating_.request_stop();
    beating_.join();
  }
  quietly([&] {
    OwnDirectory(directory_, ExitCode::output).remove(file_of(rank_));
    remove_empty_directory(directory_, ExitCode::output);
  });
}

void Watchdog::set_timeout(double seconds) {
  std::lock_guard lock(mutex_);
  timeout_ = Seconds(seconds);
}

void Watchdog::require_free_heartbeats(const std::string& directory, int ranks) {
  require_own_place(directory, FileKind::directory, ExitCode::output);
  require_possible_directory(directory, ExitCode::output);
  if (!exists(directory, ExitCode::output)) return;
  const OwnDirectory own(directory, ExitCode::output);
  for (const std::string& name : own.list()) {
    if (!is_of_rank(name, ranks) || is_heartbeat(own.read(name, max_line))) continue;
    throw Error(ExitCode::output, fmt::format("{}/{}: is no heartbeat of a run: move it away", directory, name));
  }
}

void Watchdog::clear_heartbeats(const std::string& directory, int ranks) {
  require_free_heartbeats(directory, ranks);
  const OwnDirectory own = OwnDirectory::make(directory, ExitCode::output);
  std::vector<std::string> foreign;
  for (const std::string& name : own.list()) {
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    bool is_own = false;
    quietly([&] { is_own = is_heartbeat(own.read(name, max_line)); });
    if (is_own) {
      own.remove(name);
    } else {
      foreign.push_back(name);
    }
  }
  if (foreign.empty()) return;
  warn(fmt::format("{}: no heartbeats of a run, and left alone: {}", directory,
                   excerpt(fmt::format("{}", fmt::join(foreign, ", ")))));
}

void Watchdog::share_heartbeats(const std::string& directory) {
  directory_ = directory;
  write({});
  beating_ = std::jthread([this](std::stop_token stop) { beat(stop); });
}

void Watchdog::set_log(const std::string& path) {
  std::lock_guard lock(mutex_);
  log_.emplace(path, ExitCode::output);
}

void Watchdog::arm(const char* what) {
  std::lock_guard lock(mutex_);
  what_ = what;
  since_ = Clock::now();
  ++collectives_;
}

void Watchdog::disarm() {
  std::lock_guard lock(mutex_);
  what_ = nullptr;
  culprit_ = unknown_culprit;
}

/// Runs in the thread that ends the job.
void Watchdog::watch(std::stop_token stop) {
  Clock::time_point last = Clock::now(), alive = last;
  std::uint64_t signs = 0;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    wake_.wait_for(lock, stop, std::chrono::milliseconds(200), [] { return false; });
    // Time in which this process itself was stopped is nobody else's fault.
    const Clock::duration pause = Clock::now() - std::exchange(last, Clock::now());
    if (pause > std::chrono::seconds(1)) {
      since_ += pause;
      alive += pause;
      if (at_files_) *at_files_ += pause;
    }
    if (what_ != nullptr && Clock::now() - since_ > timeout_) expire();
    const std::uint64_t signs_before = std::exchange(signs, kernels::life.signs.load());
    if (signs != signs_before || what_ != nullptr || !working_) alive = Clock::now();
    if (Clock::now() - alive > max_silence()) expire_at_work();
  }
}

/// A slow rank must not be taken for a rank that hangs: between two signs of life lies one loop over rows or one GEMM,
/// and no core takes more than a nanosecond for an operation of a GEMM. If there are several ranks, the ranks that wait
/// in a collective see more than this one, and report first.
Watchdog::Seconds Watchdog::max_silence() const {
  constexpr Seconds operation(1e-9);
  return (ranks_ > 1 ? 2 : 1) * timeout_ + kernels::life.max_work.load() * operation;
}

/// Where the file system of the heartbeats hangs: what the message says in place of a rank; else empty.
std::string Watchdog::frozen_files() const {
  const Seconds since = at_files_ ? Clock::now() - *at_files_ : Seconds(0);
  if (since < timeout_ / 4) return {};
  return fmt::format("the file system of {} has not answered for {:.4g} s, and the ranks may be waiting for it",
                     directory_, since.count());
}

void Watchdog::expire() {
  const std::string files = frozen_files();
  end_job(fmt::format("rank {}: {} at step {} did not complete within {:.4g} s: {} (comm.timeout_seconds)", rank_,
                      what_, step_.load(), timeout_.count(), files.empty() ? culprit_ : files));
}

void Watchdog::expire_at_work() {
  const std::string files = frozen_files();
  end_job(fmt::format(
      "rank {}: hangs outside of collectives at step {}: no sign of life for {:.4g} s{}{} (see comm.timeout_seconds)",
      rank_, step_.load(), max_silence().count(), files.empty() ? "" : ": ", files));
}

void Watchdog::end_job(const std::string& message) {
  complain(message);
  if (log_) note(message);
  abort_();
  std::abort();
}

/// Gives up where the file system hangs. The thread ends with the job.
void Watchdog::note(const std::string& message) {
  const auto written = std::make_shared<std::promise<void>>();
  std::thread([this, message, written] {
    quietly([&] { log_->write(fmt::format("error: {}\n", message)); });
    written->set_value();
  }).detach();
  written->get_future().wait_for(std::chrono::seconds(2));
}

/// Runs in the thread that writes this rank's line, and reads all lines in the second half of a timeout.
void Watchdog::beat(std::stop_token stop) {
  std::optional<std::vector<Heartbeat>> halfway;
  std::uint64_t halfway_collective = 0;
  Heartbeat own;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    ++own.beats;
    own.collectives = collectives_;
    own.inside = what_ != nullptr;
    own.step = step_;
    const bool late = own.inside && Clock::now() - since_ > timeout_ / 2;
    const bool writes_files = own.inside && std::string_view(what_).starts_with("write ");
    const Seconds interval = std::min(timeout_ / 16, Seconds(10));
    at_files_ = Clock::now();
    lock.unlock();
    quietly([&] { write(own); });
    std::string culprit;
    if (!late || halfway_collective != own.collectives) halfway.reset();
    if (late && halfway) {
      culprit = find_culprit(*halfway, read_all(), writes_files);
    } else if (late) {
      halfway = read_all();
      halfway_collective = own.collectives;
    }
    lock.lock();
    at_files_.reset();
    if (!culprit.empty() && what_ != nullptr && collectives_ == own.collectives) culprit_ = culprit;
    wake_.wait_for(lock, stop, interval, [] { return false; });
  }
}

void Watchdog::write(const Heartbeat& heartbeat) const {
  OwnDirectory(directory_, ExitCode::output)
      .overwrite_start(file_of(rank_), fmt::format(line_format, heartbeat.beats, heartbeat.collectives,
                                                   static_cast<int>(heartbeat.inside), heartbeat.step));
}

/// The lines of all ranks; zeros for one that cannot be read.
std::vector<Watchdog::Heartbeat> Watchdog::read_all() const {
  std::vector<Heartbeat> heartbeats(ranks_);
  for (int rank = 0; rank < ranks_; ++rank) {
    quietly([&] {
      std::istringstream line(OwnDirectory(directory_, ExitCode::output).read(file_of(rank), max_line));
      Heartbeat h;
      if (line >> h.beats >> h.collectives >> h.inside >> h.step) heartbeats[rank] = h;
    });
  }
  return heartbeats;
}

/// Whom the lines of half a timeout blame for the collective that this rank waits in.
std::string Watchdog::find_culprit(const std::vector<Heartbeat>& then, const std::vector<Heartbeat>& now,
                                   bool writes_files) const {
  // If the directory does not even take this rank's lines, the other ranks' lines say nothing.
  if (now[rank_].beats == then[rank_].beats) {
    return fmt::format("{}, and {} takes no heartbeats that would tell which", unknown_culprit, directory_);
  }
  std::vector<int> silent, outside, behind;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (now[rank].beats == then[rank].beats) silent.push_back(rank);
    if (now[rank].collectives >= now[rank_].collectives) continue;
    (now[rank].inside ? behind : outside).push_back(rank);
  }
  if (!silent.empty()) return fmt::format("no sign of life from {}, stopped or dead", list_of(silent));
  if (!outside.empty()) {
    return fmt::format("{} of step {} {} outside of collectives", list_of(outside), now[outside.front()].step,
                       outside.size() == 1 ? "hangs" : "hang");
  }
  if (!behind.empty()) {
    return fmt::format("{} {} in an earlier collective", list_of(behind), behind.size() == 1 ? "waits" : "wait");
  }
  if (!writes_files) return "all ranks are alive and have entered it, so the communication itself hangs";
  return "all ranks are alive and have entered it, so the file system that it writes to, or the communication, hangs, "
         "or a rank has failed in it without leaving it, as for want of memory, and MPI may have said so";
}

}  // namespace nanorun
