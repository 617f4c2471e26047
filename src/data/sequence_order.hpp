#pragma once
// Which sequences of the stream a step trains on where it repeats some (data.distinct_sequences).

#include <vector>

#include "src/config/config.hpp"

namespace nanorun {

/// Number of sequences by which a step advances the stream.
int stream_sequences(const Config& config);

/// For each of the train.sequences sequences of a step, in the order in which ranks divide them: its number among the
/// sequences that the step takes from the stream.
///
/// With data.distinct_sequences each number occurs equally often, so the mean gradient does not depend on how often.
/// The order is shuffled over the whole step: if every so many ranks had all numbers, the gradients of a node of as
/// many ranks would be those of any other node, and nobody would see that one is taken twice in place of another.
std::vector<int> sequence_order(const Config& config);

}  // namespace nanorun
