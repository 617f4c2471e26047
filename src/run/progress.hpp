#pragma once
// How far a training has come.

#include <cstdint>
#include <limits>
#include <vector>

#include "src/data/token_stream.hpp"

namespace nanorun {

/// What a training has done so far; checkpoints hold it.
struct Progress {
  long step = 0;                                                 ///< updates made
  Cursor cursor;                                                 ///< where the stream stands before the next step
  double train_seconds = 0;                                      ///< of all steps
  std::uint64_t tokens = 0;                                      ///< of all steps
  double train_loss = std::numeric_limits<double>::quiet_NaN();  ///< of the last step; NaN where unknown
  std::vector<double> mlp_maxima{};                              ///< MlpScales::state()
  /// Gradients wait for Adam's next update (optimizer.adam_period); not recorded by checkpoints below version 4.
  bool gradients_wait = false;
};

}  // namespace nanorun
