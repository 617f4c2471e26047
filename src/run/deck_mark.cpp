#include "src/run/deck_mark.hpp"

#include <fmt/format.h>

#include "src/base/error.hpp"
#include "src/config/config.hpp"
#include "src/storage/h5.hpp"

namespace nanorun {

namespace {

/// Whether one run does not have both decks that differ so: in its name, or in what trains, but not in the steps.
bool tells_runs_apart(const KeyChange& change) {
  return change.key == "run.name" || (change.role != Role::operates && change.key != "train.steps");
}

template <class Counts>
std::uint64_t hash_of(const std::string& deck, Counts&& counts) {
  std::string differences;
  for (const KeyChange& change : deck_changes(deck, Config{})) {
    if (counts(change)) differences += change.text + "\n";
  }
  return h5::checksum(differences);
}

}  // namespace

std::uint64_t training_mark(const std::string& deck) {
  constexpr std::uint64_t exact_in_json = std::uint64_t{1} << 53;
  return hash_of(deck, [](const KeyChange& change) { return change.role != Role::operates; }) % exact_in_json;
}

std::string run_mark(const std::string& deck) {
  std::string mark;
  quietly([&] { mark = fmt::format(" {:016x}", hash_of(deck, tells_runs_apart)); });
  return mark;
}

}  // namespace nanorun
