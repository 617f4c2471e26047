#include "src/run/earlier_run.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "src/base/text.hpp"
#include "src/measure/metrics.hpp"
#include "src/measure/trace_datasets.hpp"
#include "src/run/deck_mark.hpp"
#include "src/run/run_files.hpp"
#include "src/run/summary.hpp"

namespace nanorun {

namespace {

/// What an earlier run has left in the directory.
struct Remains {
  std::string deck;
  std::string deck_file;   ///< the file that holds the deck
  bool begun = false;      ///< there are steps or a summary.json, not the deck alone
  bool summary = false;    ///< there is a summary.json
  bool cut_short = false;  ///< there is no summary.json, or it tells that the disk had no space left
  long finished_at = 0;    ///< steps of the finished run that summary.json describes; 0 if it describes none
  bool finished = false;
  std::optional<std::uint64_t> deck_mark;  ///< training_mark() of the deck that made the metrics, if they tell
};

bool has_own_deck(const std::string& path) {
  bool own = false;
  quietly([&] { own = run_file("deck.toml").is_own(path); });
  return own;
}

/// Absent where no run has left a checkpoint, figures or its deck.
std::optional<Remains> look(const std::string& directory, const Checkpoints& checkpoints,
                            const std::optional<Progress>& found) {
  const std::string deck_file = directory + "/deck.toml";
  std::optional<std::string> summary = text_of_run(directory + "/summary.json");
  if (summary && (!is_summary(*summary) || is_of_no_step(*summary))) summary.reset();
  // Whole files are read only where nothing smaller tells.
  const RecordedRun recorded = found || summary ? RecordedRun{} : recorded_run(directory + "/metrics.jsonl");
  const bool begun = found || summary || recorded.step > 0 || traced_steps(directory + "/trace.h5") > 0;
  if (!begun && !has_own_deck(deck_file)) return std::nullopt;
  Remains remains;
  remains.begun = begun;
  remains.deck_mark = recorded.deck_mark;
  remains.deck = found ? checkpoints.restored().deck : text_of_run(deck_file).value_or("");
  remains.deck_file = found ? checkpoints.restored_file() : deck_file;
  remains.summary = summary.has_value();
  remains.cut_short = !summary || is_short_of_space(*summary);
  remains.finished_at = summary ? finished_steps(*summary) : 0;
  remains.finished =
      remains.finished_at > 0 || (found && found->step == parse_deck(remains.deck, remains.deck_file, {}).train.steps);
  return remains;
}

/// Changes of the deck that make it another training, as text. More steps alone are none where there is a checkpoint,
/// or no step was made.
std::vector<std::string> differences(const Remains& remains, const Config& config,
                                     const std::optional<Progress>& checkpoint) {
  if (remains.deck.empty()) return {"its deck.toml is missing or empty"};
  std::vector<KeyChange> changes;
  try {
    changes = deck_changes(remains.deck, config, remains.deck_file);
  } catch (const Error& error) {
    return {fmt::format("its deck cannot be read: {}", excerpt(error.what()))};
  }
  std::vector<std::string> texts;
  bool steps_alone = true;
  for (const KeyChange& change : changes) {
    if (change.role == Role::operates) continue;
    texts.push_back(change.text);
    steps_alone = steps_alone && change.key == "train.steps";
  }
  if ((checkpoint || !remains.begun) && steps_alone) texts.clear();
  return texts;
}

/// Whether the deck in the directory has made the figures there. Somebody may have changed it since.
bool has_made_its_figures(const std::string& directory, const Remains& remains) {
  if (remains.deck_mark) return *remains.deck_mark == training_mark(remains.deck);
  // Earlier programs leave no mark, but go on writing behind the deck.
  const auto changed = [&](const char* name) {
    const std::string path = directory + name;
    if (!exists(path, ExitCode::output)) return std::pair<std::int64_t, std::int64_t>{};
    const FileState state = state_of(path, ExitCode::output);
    return std::pair{state.seconds, state.nanoseconds};
  };
  return has_own_deck(remains.deck_file) &&
         changed("/deck.toml") <= std::max(changed("/metrics.jsonl"), changed("/trace.h5"));
}

}  // namespace

Continuation examine_earlier_run(const std::string& directory, const Config& config, const Checkpoints& checkpoints,
                                 const std::optional<Progress>& found) {
  if (config.checkpoint.restart != "auto") return {.here = found && checkpoints.continues_here()};
  const std::optional<Remains> remains = look(directory, checkpoints, found);
  if (!remains) return {.here = true};
  if (remains->finished || !found) {
    const std::vector<std::string> changes = differences(*remains, config, found);
    if (!changes.empty() && !remains->finished && remains->cut_short) return {};
    if (!changes.empty()) {
      throw Error(ExitCode::usage,
                  fmt::format("{} contains {} of a different training ({}): choose another run.name, or set "
                              "checkpoint.restart=none, which keeps that run as {}.1, .2, ...",
                              directory, remains->finished ? "a finished run" : "the results of a run",
                              fmt::join(changes, "; "), directory));
    }
  }
  if (remains->finished_at == config.train.steps) return {.here = true, .complete = true};
  // Where there is a summary but no checkpoint, the checkpoints are gone.
  if (!found && remains->summary) return {};
  const bool again = !found && remains->begun;
  if (again && !has_made_its_figures(directory, *remains)) return {};
  return {.here = true, .again = again};
}

void require_steps_ahead(const Checkpoints& checkpoints, const Config& config) {
  const long step = checkpoints.restored().progress.step;
  if (step <= config.train.steps) return;
  throw Error(ExitCode::usage,
              fmt::format("{} has made {} steps already, more than train.steps = {}", checkpoints.restored_file(), step,
                          config.train.steps),
              Scope::all_ranks);
}

std::vector<std::string> changes_since(const Checkpoints& checkpoints, const Config& config) {
  try {
    return change_lines(deck_changes(checkpoints.restored().deck, config));
  } catch (const Error& error) {
    return {fmt::format("warning: the deck cannot be compared with the earlier one: {}", excerpt(error.what()))};
  }
}

}  // namespace nanorun
