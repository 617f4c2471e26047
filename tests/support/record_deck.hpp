#pragma once
// The decks of records, for tests that look at their models. NANORUN_SOURCE_DIR is defined for the sources of these.

#include <fstream>
#include <iterator>
#include <string>

#include "src/config/config.hpp"

namespace nanorun {

/// inputs/record<number>.toml.
inline Config input_deck(const std::string& name) {
  const std::string path = NANORUN_SOURCE_DIR "/inputs/" + name + ".toml";
  std::ifstream file(path);
  return parse_deck({std::istreambuf_iterator<char>(file), {}}, path, {});
}
inline Config record_deck(int number) { return input_deck("record" + std::to_string(number)); }

}  // namespace nanorun
