#include "src/comm/culprit.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace nanorun {

namespace {

constexpr const char* unknown_culprit = "another rank has died or hangs";

Culprit blame(Culprit::Kind kind, const std::vector<int>& ranks, long step) {
  Culprit culprit{.kind = kind, .count = static_cast<std::uint32_t>(ranks.size()), .step = step};
  std::copy_n(ranks.begin(), std::min<std::size_t>(ranks.size(), Culprit::max_named), culprit.ranks.begin());
  return culprit;
}

/// " on node n1" or " on nodes n1, n2" of the ranks that are named.
std::string nodes_of(std::span<const std::int32_t> ranks, const std::function<std::string(int)>& host_of) {
  if (!host_of) return "";
  std::vector<std::string> hosts;
  for (const int rank : ranks) {
    const std::string host = host_of(rank);
    if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
  }
  return fmt::format(" on {} {}", hosts.size() == 1 ? "node" : "nodes", fmt::join(hosts, ", "));
}

std::string list_of(const Culprit& culprit, const std::function<std::string(int)>& host_of) {
  const auto named = std::span(culprit.ranks).first(std::min<std::size_t>(culprit.count, Culprit::max_named));
  return fmt::format("{} {}{}{}", culprit.count == 1 ? "rank" : "ranks", fmt::join(named, ", "),
                     culprit.count > named.size() ? ", ..." : "", nodes_of(named, host_of));
}

}  // namespace

Culprit find_culprit(const std::vector<Heartbeat>& then, const std::vector<Heartbeat>& now,
                     std::span<const int> suspects, int waiting, bool writes_files) {
  using Kind = Culprit::Kind;
  std::vector<int> silent, outside, behind;
  for (const int rank : suspects) {
    if (now[rank].beats == then[rank].beats) silent.push_back(rank);
    if (now[rank].collectives >= now[waiting].collectives) continue;
    (now[rank].activity == Activity::outside ? outside : behind).push_back(rank);
  }
  if (!silent.empty()) return blame(Kind::silent, silent, now[silent.front()].step);
  if (!outside.empty()) return blame(Kind::outside, outside, now[outside.front()].step);
  if (!behind.empty()) return blame(Kind::behind, behind, now[behind.front()].step);
  if (suspects.size() < now.size()) return {.kind = Kind::no_heartbeats};
  return {.kind = writes_files ? Kind::writes : Kind::communication};
}

std::string text_of(const Culprit& culprit, const std::string& directory,
                    const std::function<std::string(int)>& host_of) {
  const bool one = culprit.count == 1;
  switch (culprit.kind) {
    case Culprit::Kind::silent:
      return fmt::format("no sign of life from {}, stopped or dead", list_of(culprit, host_of));
    case Culprit::Kind::outside:
      return fmt::format("{} of step {} {} outside of collectives", list_of(culprit, host_of), culprit.step,
                         one ? "hangs" : "hang");
    case Culprit::Kind::behind:
      return fmt::format("{} {} in an earlier collective", list_of(culprit, host_of), one ? "waits" : "wait");
    case Culprit::Kind::no_heartbeats:
      return fmt::format("{}, and {} takes no heartbeats that would tell which", unknown_culprit, directory);
    case Culprit::Kind::communication:
      return "all ranks are alive and have entered it, so the communication itself hangs";
    case Culprit::Kind::writes:
      return "all ranks are alive and have entered it, so the file system that it writes to, or the communication, "
             "hangs, or a rank has failed in it without leaving it, as for want of memory, and MPI may have said so";
    default:
      return unknown_culprit;
  }
}

}  // namespace nanorun
