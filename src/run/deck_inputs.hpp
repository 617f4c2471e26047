#pragma once
// The files that a deck names for reading: shards, prefix table and checkpoints.

#include <span>
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

/// For one rank. Throws Error(usage) where an input lies in `directory`, which a start would give another name. Changes
/// nothing.
void require_inputs_outside(const Config& config, const std::string& directory);

/// For one rank. Throws Error(usage) where an input has one of the paths that a start writes or clears. Changes
/// nothing.
void require_inputs_apart(const Config& config, std::span<const std::string> written);

}  // namespace nanorun
