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
  Cursor cursor;                                                 ///< position in the training data before the next step
  double train_seconds = 0;                                      ///< time of all steps
  std::uint64_t tokens = 0;                                      ///< tokens of all steps
  double train_loss = std::numeric_limits<double>::quiet_NaN();  ///< loss of the last step; NaN where unknown
  std::vector<double> mlp_maxima{};  ///< Fp8ScalesOf::state(), where that keeps_two_rows() these
  std::vector<double> fp8_maxima{};  ///< else the whole state
  /// Gradients wait for Adam's next update (optimizer.adam_period). Checkpoints below version 4 do not record this.
  bool gradients_wait = false;
};

}  // namespace nanorun
