#include "src/measure/trace_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "src/base/files_own.hpp"
#include "src/base/output_file.hpp"

namespace nanorun {

namespace {

using nlohmann::json;

json metadata(const char* name, int rank, Track track, const std::string& value) {
  return {{"ph", "M"}, {"name", name}, {"pid", rank}, {"tid", static_cast<int>(track)}, {"args", {{"name", value}}}};
}

json arguments_of(const TraceSpan& span) {
  json arguments = {{"step", span.step}};
  if (span.track == Track::collectives) arguments["level"] = span.level == Level::between ? "between" : "inside";
  return arguments;
}

/// Begin and duration in microseconds, of whole nanoseconds. Viewers draw an event inside one that ends after it
/// begins, which what follows at once must not do: an event ends a nanosecond early.
std::pair<double, double> times_of(const TraceSpan& span) {
  const double begin = std::round(1e9 * span.begin), end = std::round(1e9 * (span.begin + span.seconds));
  return {begin / 1e3, std::max(0.0, end - begin - 1) / 1e3};
}

/// The text of a file with these events, separated by commas.
std::string text_of(const std::string& events) {
  std::string text = json{{"traceEvents", json::array()}, {"displayTimeUnit", "ms"}}.dump() + '\n';
  return text.insert(text.find(']'), events);
}

/// The events of a rank, separated by commas.
std::string events_of(const std::vector<TraceSpan>& spans, const ShownRank& shown) {
  const int rank = shown.rank;
  json list = {metadata("process_name", rank, Track::compute, shown.name),
               metadata("thread_name", rank, Track::compute, "compute"),
               metadata("thread_name", rank, Track::collectives, "collectives"),
               metadata("thread_name", rank, Track::upload, "upload")};
  for (const TraceSpan& span : spans) {
    const auto [begin, duration] = times_of(span);
    list.push_back({{"ph", "X"},
                    {"name", span.phase == Phase::count ? fmt::format("step {}", span.step) : phase_name(span.phase)},
                    {"cat", span.category},
                    {"pid", rank},
                    {"tid", static_cast<int>(span.track)},
                    {"ts", begin},
                    {"dur", duration},
                    {"args", arguments_of(span)}});
  }
  const std::string text = list.dump();
  return text.substr(1, text.size() - 2);
}

void write_events(const std::string& path, const std::vector<std::string>& events_by_rank) {
  std::string events;
  for (const std::string& of_rank : events_by_rank) {
    if (!of_rank.empty()) events += (events.empty() ? "" : ",") + of_rank;
  }
  clear_own_place(path, ExitCode::output, is_trace_json);
  if (has_file(path, ExitCode::output)) set_aside(path, ExitCode::output);
  replace_text(path, ExitCode::output, text_of(events));
}

std::string plain_name(int rank) { return fmt::format("rank {}", rank); }

/// The slowest, the median and the quickest of some ranks.
struct Examples {
  Examples(std::vector<int> ranks, std::span<const double> work) {
    std::ranges::stable_sort(ranks, std::greater(), [&](int rank) { return work[rank]; });
    slowest = ranks.front();
    median = ranks[ranks.size() / 2];
    quickest = ranks.back();
  }
  std::map<int, const char*> titles() const {
    return {{slowest, "slowest"}, {quickest, "quickest"}, {median, "median"}};
  }

  int slowest, median, quickest;
};

}  // namespace

bool is_trace_json(const std::string& path) {
  const std::string first = text_of(metadata("process_name", 0, Track::compute, plain_name(0)).dump());
  const std::string begin = first.substr(0, first.rfind(']'));
  return read_start(path, begin.size(), ExitCode::output) == begin;
}

std::vector<ShownRank> shown_of_many(const NodeLayout& layout, std::span<const double> work) {
  std::vector<int> all(layout.ranks());
  std::iota(all.begin(), all.end(), 0);
  const Examples of_all(std::move(all), work);
  std::map<int, std::string> names;
  for (const int rank : {0, of_all.slowest, of_all.median, of_all.quickest}) {
    const int node = layout.node_of(rank);
    std::vector<int> on_node;
    for (int place = 0; place < layout.ranks_on(node); ++place) on_node.push_back(layout.rank_at(node, place));
    for (const auto& [example, title] : Examples(on_node, work).titles())
      names[example] = fmt::format("rank {} on node {}, the {} there", example, node, title);
  }
  for (const auto& [rank, title] : of_all.titles())
    names[rank] = fmt::format("rank {} on node {}, the {} of all", rank, layout.node_of(rank), title);
  names[0] = plain_name(0);
  std::vector<ShownRank> shown;
  for (auto& [rank, name] : names) shown.push_back({rank, std::move(name)});
  return shown;
}

std::vector<ShownRank> all_shown(int ranks) {
  std::vector<ShownRank> shown;
  for (int rank = 0; rank < ranks; ++rank) shown.push_back({rank, plain_name(rank)});
  return shown;
}

void write_trace_json(Comm& comm, const std::string& path, const std::vector<TraceSpan>& spans,
                      std::span<const ShownRank> shown) {
  const auto own = std::ranges::find(shown, comm.rank(), &ShownRank::rank);
  const std::vector<std::string> events_by_rank = comm.gather(own == shown.end() ? "" : events_of(spans, *own));
  comm.together([&] {
    if (comm.root()) write_events(path, events_by_rank);
  });
}

}  // namespace nanorun
