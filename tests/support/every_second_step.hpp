#pragma once
// What tests of records' decks expect of a tensor that Adam updates.

#include "src/optimizer/hyperparameters.hpp"

namespace nanorun {

/// The hyperparameters with an update in every second step.
inline Hyperparameters in_every_second_step(Hyperparameters hyper) {
  hyper.updates = {.period = 2, .late_period = 2};
  return hyper;
}

}  // namespace nanorun
