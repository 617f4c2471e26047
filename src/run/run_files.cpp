#include "src/run/run_files.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.hpp"
#include "src/base/files_own.hpp"
#include "src/measure/metrics.hpp"
#include "src/measure/trace_datasets.hpp"
#include "src/measure/trace_file.hpp"
#include "src/measure/trace_json.hpp"
#include "src/run/log.hpp"
#include "src/run/summary.hpp"
#include "src/storage/h5_partial.hpp"

namespace nanorun {

namespace {

bool is_deck(const std::string& path) { return is_resolved_deck(text_of_run(path).value_or("")); }

bool is_summary_file(const std::string& path) { return is_summary(text_of_run(path).value_or("")); }

}  // namespace

std::array<RunFile, 6> run_files() {
  return {{{.name = "deck.toml", .grows = false, .is_own = is_deck},
           {.name = "summary.json", .grows = false, .is_own = is_summary_file},
           {.name = "trace.h5", .grows = false, .is_own = is_trace, .warning = trace_warning},
           {.name = "trace.json", .grows = false, .is_own = is_trace_json},
           {.name = "metrics.jsonl", .grows = true, .is_own = is_metrics, .warning = metrics_warning},
           {.name = "log.txt", .grows = true, .is_own = is_log}}};
}

RunFile run_file(std::string_view name) {
  const auto files = run_files();
  return *std::ranges::find(files, name, &RunFile::name);
}

bool needs(const Config& config, const RunFile& file) {
  const std::string_view name = file.name;
  if (name == "trace.h5") return config.trace.enabled;
  return name != "trace.json" || (config.trace.enabled && !config.trace.json_steps.empty());
}

bool is_own_partial(const RunFile& file, const std::string& partial) {
  bool whole = false;  // of a file that grows the run writes none, so that it is somebody's copy
  if (!file.grows) quietly([&] { whole = file.is_own(partial); });
  if (whole) return true;
  if (std::string_view(file.name) == "trace.h5" && !h5::is_foreign_partial(partial, trace_format, ExitCode::output))
    return true;
  throw Error(ExitCode::output, partial + ": somebody's own, or the rest of a write that was cut short");
}

std::optional<std::string> text_of_run(const std::string& path) {
  require_own_place(path, FileKind::regular, ExitCode::output);
  if (!exists(path, ExitCode::output)) return std::nullopt;
  const std::uint64_t bytes = file_size(path, ExitCode::output);
  if (bytes > max_run_file)
    throw Error(ExitCode::output,
                fmt::format("{}: {} bytes are too many for a file of a run: move it away", path, bytes));
  return read_text(path, max_run_file, ExitCode::output);
}

}  // namespace nanorun
