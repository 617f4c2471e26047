#include "src/earlier_run.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "src/report.hpp"

namespace nanorun {

namespace {

struct Earlier {
  std::string deck;
  bool finished = false;
  bool summarised = false;  ///< summary.json says that all the steps of this deck are made
};

/// Nothing where no run has left a checkpoint or figures.
std::optional<Earlier> look(const RunFolder& folder, const Config& config, const Checkpoints& checkpoints,
                            const std::optional<Progress>& found) {
  const std::optional<std::string> summary = folder.read("summary.json");
  if (!found && !summary && !exists(folder.file("trace.h5"), ExitCode::output)) return std::nullopt;
  Earlier earlier;
  earlier.deck = found ? checkpoints.restored().deck : folder.read("deck.toml").value_or("");
  const long finished_at = summary ? finished_steps(*summary) : 0;
  earlier.summarised = finished_at == config.train.steps;
  earlier.finished =
      found ? found->step == parse_deck(earlier.deck, "the earlier deck", {}).train.steps : finished_at > 0;
  return earlier;
}

/// Changes of the deck that make it another training, as text; more steps alone are none where there is a checkpoint.
std::vector<std::string> differences(const Earlier& earlier, const Config& config, bool extensible) {
  if (earlier.deck.empty()) return {"its deck.toml is missing"};
  std::vector<std::string> texts;
  bool steps_alone = true;
  for (const KeyChange& change : deck_changes(earlier.deck, config)) {
    if (change.role == Role::operates) continue;
    texts.push_back(change.text);
    steps_alone = steps_alone && change.key == "train.steps";
  }
  if (extensible && steps_alone) texts.clear();
  return texts;
}

}  // namespace

bool is_complete(const RunFolder& folder, const Config& config, const Checkpoints& checkpoints,
                 const std::optional<Progress>& found) {
  const std::optional<Earlier> earlier = look(folder, config, checkpoints, found);
  if (!earlier) return false;
  if (earlier->finished || !found) {
    const std::vector<std::string> changes = differences(*earlier, config, found.has_value());
    if (!changes.empty()) {
      throw Error(ExitCode::usage,
                  fmt::format("{} holds {} of another training ({}): choose another run.name, or set "
                              "checkpoint.restart=none, which keeps that run as {}.1, .2, ...",
                              folder.path(), earlier->finished ? "a finished run" : "the figures of a run",
                              fmt::join(changes, "; "), folder.path()));
    }
  }
  return earlier->finished && earlier->summarised;
}

}  // namespace nanorun
