#pragma once
// The files that a deck names for reading: shards, prefix table and checkpoints.

#include <functional>
#include <string>
#include <vector>

#include "src/config/config.hpp"

namespace nanorun {

/// A key of the deck and the files that it names. Patterns of shards stay patterns.
struct DeckInputs {
  const char* key;
  std::vector<std::string> files;
};

/// Keys without files are left out.
std::vector<DeckInputs> deck_inputs(const Config& config);

/// What a start does to what has an absolute path, for a message; empty where it stays.
using Fate = std::function<std::string(const std::string& path)>;

/// For one rank. Throws Error(usage) where a start would rename, replace or remove an input, a link by which the deck
/// names it, or a directory on the way there. Changes nothing.
void require_inputs_stay(const Config& config, const Fate& fate);

}  // namespace nanorun
