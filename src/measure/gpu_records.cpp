#include "src/measure/gpu_records.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "src/measure/trace_columns.hpp"

namespace nanorun {

namespace {

void add_clock(GpuGroup& group, int rank, const GpuRecord& gpu) {
  if (gpu.least_clock > 0)
    group.all.least_clock =
        group.all.least_clock > 0 ? std::min(group.all.least_clock, gpu.least_clock) : gpu.least_clock;
  if (gpu.mean_clock == 0) return;
  if (group.slowest < 0 || gpu.mean_clock < group.slowest_clock) {
    group.slowest = rank;
    group.slowest_clock = gpu.mean_clock;
  }
  if (gpu.mean_clock > group.fastest_clock) {
    group.fastest = rank;
    group.fastest_clock = gpu.mean_clock;
  }
}

void add_throttled(GpuGroup& group, int rank, const GpuRecord& gpu) {
  for (const auto& [name, looks] : gpu.throttled) {
    group.all.throttled[name] += looks;
    GpuGroup::Throttled& throttled = group.throttled[name];
    throttled.ranks += 1;
    throttled.most.emplace_back(rank, looks);
  }
}

GpuGroup group_of(std::span<const GpuRecord> records, const std::vector<int>& ranks) {
  GpuGroup group;
  group.first_rank = ranks.front();
  group.ranks = static_cast<int>(ranks.size());
  int clocks = 0, powers = 0;
  for (const int rank : ranks) {
    const GpuRecord& gpu = records[rank];
    add_clock(group, rank, gpu);
    add_throttled(group, rank, gpu);
    clocks += gpu.mean_clock > 0;
    powers += gpu.mean_power > 0;
    group.all.mean_clock += gpu.mean_clock;
    group.all.mean_power += gpu.mean_power;
    group.all.most_power = std::max(group.all.most_power, gpu.most_power);
  }
  if (clocks > 0) group.all.mean_clock /= clocks;
  group.all.mean_power = powers == group.ranks ? group.all.mean_power / powers : 0;
  for (auto& [name, throttled] : group.throttled) {
    std::ranges::stable_sort(throttled.most, std::greater(), &std::pair<int, long>::second);
    if (throttled.most.size() > GpuGroup::max_named) throttled.most.resize(GpuGroup::max_named);
  }
  return group;
}

/// "rank 3", "ranks 0, 2", or of many ranks the first: "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 56 more".
std::string list_of(std::span<const std::size_t> ranks) {
  constexpr std::size_t max_named = 8;
  const std::span<const std::size_t> named = ranks.first(std::min(max_named, ranks.size()));
  std::string text = fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(named, ", "));
  if (ranks.size() > named.size()) text += fmt::format(" and {} more", ranks.size() - named.size());
  return text;
}

}  // namespace

std::vector<GpuGroup> group_gpus(std::span<const GpuRecord> records, const TraceColumns& columns) {
  std::vector<GpuGroup> groups;
  if (records.empty()) return groups;
  for (int column = 0; column < columns.count(); ++column)
    groups.push_back(group_of(records, columns.ranks_of(column)));
  return groups;
}

std::string gpu_line(std::span<const GpuRecord> records) {
  std::vector<std::size_t> known;
  for (std::size_t r = 0; r < records.size(); ++r) {
    if (records[r].mean_clock > 0) known.push_back(r);
  }
  if (known.empty()) return {};
  const auto mean_clock = [&](std::size_t r) { return records[r].mean_clock; };
  const auto [slow, fast] = std::ranges::minmax(known, {}, mean_clock);
  const double most_power = std::ranges::max(records, {}, &GpuRecord::most_power).most_power;
  std::string line = mean_clock(slow) == mean_clock(fast)
                         ? fmt::format("GPUs: mean SM clock {:.0f} MHz", records[slow].mean_clock)
                         : fmt::format("GPUs: mean SM clock {:.0f} MHz on rank {} to {:.0f} MHz on rank {}",
                                       records[slow].mean_clock, slow, records[fast].mean_clock, fast);
  if (most_power > 0) line += fmt::format(", power up to {:.0f} W", most_power);
  std::map<std::string, std::vector<std::size_t>> ranks_of;
  for (std::size_t r = 0; r < records.size(); ++r) {
    for (const auto& [name, count] : records[r].throttled) ranks_of[name].push_back(r);
  }
  for (const auto& [name, ranks] : ranks_of) line += fmt::format("; {} on {}", name, list_of(ranks));
  return line;
}

}  // namespace nanorun
