#include "src/comm/watchdog.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <memory>
#include <string_view>
#include <utility>

#include "kernels/device/life.hpp"
#include "src/base/error.hpp"
#include "src/base/output_file.hpp"

namespace nanorun {

namespace {

/// For the line in the log, after which the job ends although the file system hangs.
constexpr std::chrono::seconds writing_time(2);

}  // namespace

Watchdog::Watchdog(int rank, int ranks, std::function<void()> abort)
    : rank_(rank), ranks_(ranks), abort_(std::move(abort)), watching_([this](std::stop_token stop) { watch(stop); }) {}

void Watchdog::set_timeout(double seconds) {
  std::lock_guard lock(mutex_);
  timeout_ = Seconds(seconds);
}

void Watchdog::share_heartbeats(const std::string& directory, const NodeLayout& layout, std::span<HeartbeatSlot> node,
                                std::vector<std::string> hosts) {
  {
    std::lock_guard lock(mutex_);
    heartbeats_.emplace(directory, layout, rank_, node, std::move(hosts));
  }
  heartbeats_->begin();
  beating_ = std::jthread([this](std::stop_token stop) { beat(stop); });
}

void Watchdog::set_log(const std::string& path) {
  std::lock_guard lock(mutex_);
  log_ = path;
}

void Watchdog::arm(const char* what, Scope scope) {
  std::lock_guard lock(mutex_);
  what_ = what;
  since_ = Clock::now();
  if (scope == Scope::all_ranks) ++collectives_;
  publish();
}

void Watchdog::disarm() {
  std::lock_guard lock(mutex_);
  what_ = nullptr;
  publish();
}

/// Shows the other ranks of the node what this one does.
void Watchdog::publish() {
  if (!heartbeats_) return;
  HeartbeatSlot& own = heartbeats_->own();
  const Seconds waited = what_ == nullptr ? Seconds(0) : Clock::now() - since_;
  own.collectives = collectives_;
  own.activity = what_ == nullptr            ? Activity::outside
                 : waited > timeout_ * 7 / 8 ? Activity::due
                 : waited > timeout_ / 2     ? Activity::late
                                             : Activity::inside;
  own.step = step_.load();
  own.writes_files = what_ != nullptr && std::string_view(what_).starts_with("write ");
}

/// Runs in the thread that ends the job.
void Watchdog::watch(std::stop_token stop) {
  Clock::time_point last = Clock::now(), alive = last;
  std::uint64_t signs = 0;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    wake_.wait_for(lock, stop, std::min(interval() / 2, Seconds(0.2)), [] { return false; });
    // Time in which this process itself was stopped is nobody else's fault.
    const Clock::duration pause = Clock::now() - std::exchange(last, Clock::now());
    if (pause > std::chrono::seconds(1)) {
      since_ += pause;
      alive += pause;
      if (at_files_) *at_files_ += pause;
    }
    publish();
    if (heartbeats_) {
      ++heartbeats_->own().beats;
      heartbeats_->own().frozen_seconds = at_files_ ? Seconds(Clock::now() - *at_files_).count() : 0;
    }
    if (what_ != nullptr) expire_in_time(Clock::now() - since_);
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

/// Between rounds of heartbeats.
Watchdog::Seconds Watchdog::interval() const { return std::min(timeout_ / 16, Seconds(10)); }

/// What ranks of other nodes may need longer than this one to find the culprit and end the job.
Watchdog::Seconds Watchdog::grace() const { return std::max(3 * interval(), Seconds(2)); }

/// Where the file system of the heartbeats hangs: what the message says in place of a rank; else empty.
std::string Watchdog::frozen_files() const {
  const double seconds = heartbeats_ ? heartbeats_->frozen_seconds() : 0;
  if (Seconds(seconds) < timeout_ / 4) return {};
  return fmt::format("the file system of {} has not answered for {:.4g} s, and the ranks may be waiting for it",
                     heartbeats_->directory(), seconds);
}

/// Ends the job if the collective has taken too long, as soon as this rank has found out why. The others leave the end
/// to it for a moment, or without any such rank for the grace.
void Watchdog::expire_in_time(Seconds waited) {
  if (waited <= timeout_) return;
  const std::string files = frozen_files();
  const std::optional<Culprit> culprit = heartbeats_ ? heartbeats_->culprit(collectives_) : Culprit{};
  const bool has_found = heartbeats_ && heartbeats_->own().culprit(collectives_);
  if (files.empty() && !has_found && waited <= timeout_ + (culprit ? writing_time : grace())) return;
  const Culprit named = culprit.value_or(Culprit{});
  const std::string why = !files.empty() ? files : heartbeats_ ? heartbeats_->text(named) : text_of(named, "");
  end_job(fmt::format("rank {}: {} at step {} did not complete within {:.4g} s: {} (comm.timeout_seconds)", rank_,
                      what_, step_.load(), timeout_.count(), why),
          has_found || rank_ == 0 ? Noted::yes : Noted::no);
}

void Watchdog::expire_at_work() {
  const std::string files = frozen_files();
  end_job(fmt::format("rank {}: hangs outside of collectives at step {}: no sign of life for {:.4g} s{}{} (see "
                      "comm.timeout_seconds)",
                      rank_, step_.load(), max_silence().count(), files.empty() ? "" : ": ", files),
          Noted::yes);
}

void Watchdog::end_job(const std::string& message, Noted noted) {
  complain(message);
  if (!log_.empty() && noted == Noted::yes) note(message);
  abort_();
  std::abort();
}

/// Gives up where the file system hangs. The thread ends with the job.
void Watchdog::note(const std::string& message) {
  const auto written = std::make_shared<std::promise<void>>();
  std::thread([log = log_, message, written] {
    quietly([&] { AppendFile(log, ExitCode::output).write(fmt::format("error: {}\n", message)); });
    written->set_value();
  }).detach();
  written->get_future().wait_for(writing_time);
}

/// Runs in the thread that waits for the file system.
void Watchdog::beat(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    at_files_ = Clock::now();
    lock.unlock();
    heartbeats_->round();
    lock.lock();
    at_files_.reset();
    wake_.wait_for(lock, stop, interval(), [] { return false; });
  }
}

}  // namespace nanorun
