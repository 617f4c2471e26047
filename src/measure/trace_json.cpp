#include "src/measure/trace_json.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
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

/// The text of a file with these events.
std::string text_of(json events) {
  return json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump() + '\n';
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
  clear_own_place(path, ExitCode::output, is_trace_json);
  replace_text(path, ExitCode::output, text_of(std::move(events)));
}

}  // namespace

bool is_trace_json(const std::string& path) {
  const std::string first = text_of({metadata("process_name", 0, Track::compute, "rank 0")});
  const std::string begin = first.substr(0, first.rfind(']'));
  return read_start(path, begin.size(), ExitCode::output) == begin;
}

void write_trace_json(Comm& comm, const std::string& path, const std::vector<TraceSpan>& spans) {
  const std::vector<std::string> events_by_rank = comm.gather(events_of(spans, comm.rank()).dump());
  comm.together([&] {
    if (comm.root()) write_events(path, events_by_rank);
  });
}

}  // namespace nanorun
