#pragma once
// Marks of decks: hashes by which a run's files tell which deck has made them. Keys of default value do not count, so
// that a release with further keys gives the same marks.

#include <cstdint>
#include <string>

namespace nanorun {

/// Below 2^53. The same for resolved decks of one training, which differ in keys that operate alone. Throws
/// Error(usage) where the deck cannot be read.
std::uint64_t training_mark(const std::string& deck);

/// A space and 16 hexadecimal digits, which decks of one run have in common: they have the same run.name, and differ in
/// train.steps and in other keys that operate alone. Empty where the deck cannot be read.
std::string run_mark(const std::string& deck);

}  // namespace nanorun
