#pragma once
// This rank's sequences of a step, on their way from the shards to the device.

#include <exception>
#include <span>

#include "src/data/token_stream.hpp"
#include "src/data/uploader.hpp"
#include "src/run/run_setup.hpp"

namespace nanorun {

struct Batch {
  long step = -1;
  std::span<const Token> tokens;  ///< rows of length_at(step) + 1, valid until the next batch is read
  DeviceSequence first;           ///< the first row, on its way to the device
  Cursor after;                   ///< where the stream stands after the step
  std::exception_ptr failure;     ///< why the tokens could not be read; null where they were

  /// Sequences, each a row of `tokens`.
  std::size_t rows(const Config& config) const;
};

/// Takes the tokens of the next step, number `step`, from the loader, notes which rows of lookup tables they read, and
/// starts the upload of the first sequence.
Batch read_batch(RunSetup& run, long step);

/// Starts the upload of a sequence.
DeviceSequence upload(RunSetup& run, const Batch& batch, std::size_t row);

}  // namespace nanorun
