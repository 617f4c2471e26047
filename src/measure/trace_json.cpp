#include "src/measure/trace_json.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

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

/// The events of one rank.
json events_of(const std::vector<TraceSpan>& spans, int rank) {
  json list = {metadata("process_name", rank, Track::compute, fmt::format("rank {}", rank)),
               metadata("thread_name", rank, Track::compute, "compute"),
               metadata("thread_name", rank, Track::collectives, "collectives"),
               metadata("thread_name", rank, Track::upload, "upload")};
  for (const TraceSpan& span : spans) {
    list.push_back({{"ph", "X"},
                    {"name", span.phase == Phase::count ? fmt::format("step {}", span.step) : phase_name(span.phase)},
                    {"cat", span.category},
                    {"pid", rank},
                    {"tid", static_cast<int>(span.track)},
                    {"ts", 1e6 * span.begin},
                    {"dur", 1e6 * span.seconds},
                    {"args", arguments_of(span)}});
  }
  return list;
}

void write_events(const std::string& path, const std::vector<std::string>& events_by_rank) {
  json events = json::array();
  for (const std::string& text : events_by_rank) {
    for (json& event : json::parse(text)) events.push_back(std::move(event));
  }
  replace_text(path, ExitCode::output,
               json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump() + '\n');
}

}  // namespace

void write_trace_json(Comm& comm, const std::string& path, const std::vector<TraceSpan>& spans) {
  const std::vector<std::string> events_by_rank = comm.gather(events_of(spans, comm.rank()).dump());
  comm.together([&] {
    if (comm.root()) write_events(path, events_by_rank);
  });
}

}  // namespace nanorun
