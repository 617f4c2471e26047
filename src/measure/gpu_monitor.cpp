#include "src/measure/gpu_monitor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace nanorun {

namespace {

constexpr std::size_t numbers = 3;  ///< numbers that describe a state

}  // namespace

GpuMonitor::GpuMonitor(Comm& comm, int every, const std::string& bus_id, const std::string& library)
    : comm_(comm), every_(bus_id.empty() ? 0 : every), states_(comm.size()), sums_(comm.size()) {
  if (every_ == 0) return;
  opening_ = std::async(std::launch::async, [bus_id, library] { return std::make_unique<Nvml>(bus_id, library); });
}

Nvml* GpuMonitor::nvml() {
  if (opening_.valid()) {
    try {
      nvml_ = opening_.get();
    } catch (const std::exception& error) {
      failure_ = error.what();
    }
  }
  return nvml_.get();
}

void GpuMonitor::look() { own_ = nvml() ? nvml()->read() : GpuState{}; }

std::optional<double> GpuMonitor::joules() { return nvml() ? nvml()->joules() : std::nullopt; }

void GpuMonitor::append_to(std::vector<double>& values) const {
  const std::size_t begin = values.size();
  values.resize(begin + numbers * states_.size());
  double* const own = values.data() + begin + numbers * static_cast<std::size_t>(comm_.rank());
  own[0] = own_.power;
  own[1] = own_.clock;
  own[2] = static_cast<double>(own_.reasons & 0xffffffff);
}

void GpuMonitor::take(std::span<const double> sums) {
  looks_ += 1;
  for (std::size_t r = 0; r < states_.size(); ++r) {
    const double* const found = sums.data() + numbers * r;
    const GpuState state = states_[r] = {found[0], found[1], static_cast<std::uint64_t>(found[2])};
    auto& [record, clocks, powers] = sums_[r];
    if (state.clock > 0) {
      record.least_clock = clocks == 0 ? state.clock : std::min(record.least_clock, state.clock);
      record.mean_clock += state.clock;
      clocks += 1;
    }
    if (state.power > 0) {
      record.most_power = std::max(record.most_power, state.power);
      record.mean_power += state.power;
      powers += 1;
    }
    for (const std::string& name : throttle_names(state.reasons)) record.throttled[name] += 1;
  }
}

std::string GpuMonitor::complaint() {
  const std::vector<std::string> failures = comm_.gather(failure_);
  std::vector<std::size_t> ranks;
  for (std::size_t r = 0; r < failures.size(); ++r) {
    if (!failures[r].empty()) ranks.push_back(r);
  }
  if (ranks.empty()) return {};
  return fmt::format("power and clocks of {} are not recorded: {}",
                     ranks.size() == failures.size() ? "the GPUs" : fmt::format("the GPU of rank {}", ranks.front()),
                     failures[ranks.front()]);
}

std::optional<int> GpuMonitor::slowest() const {
  std::optional<int> slowest;
  for (std::size_t r = 0; r < states_.size(); ++r) {
    if (states_[r].clock > 0 && (!slowest || states_[r].clock < states_[*slowest].clock)) slowest = static_cast<int>(r);
  }
  return slowest;
}

void GpuMonitor::describe(StepMetrics& metrics) const {
  metrics.gpu_rank = slowest();
  if (!metrics.gpu_rank) return;
  metrics.gpu_clock = states_[*metrics.gpu_rank].clock;
  metrics.gpu_power = states_[*metrics.gpu_rank].power;
  metrics.gpus_throttled = static_cast<int>(
      std::ranges::count_if(states_, [](const GpuState& state) { return !throttle_names(state.reasons).empty(); }));
}

std::optional<double> GpuMonitor::mean_power() const {
  double sum = 0;
  for (const Sums& sums : sums_) {
    if (sums.powers == 0) return std::nullopt;
    sum += sums.record.mean_power / static_cast<double>(sums.powers);
  }
  return sum;
}

std::vector<GpuRecord> GpuMonitor::records() const {
  std::vector<GpuRecord> records;
  if (std::ranges::all_of(sums_, [](const Sums& s) { return s.clocks == 0 && s.powers == 0; })) return records;
  for (const Sums& sums : sums_) {
    GpuRecord& record = records.emplace_back(sums.record);
    if (sums.clocks > 0) record.mean_clock /= static_cast<double>(sums.clocks);
    if (sums.powers > 0) record.mean_power /= static_cast<double>(sums.powers);
  }
  return records;
}

}  // namespace nanorun
