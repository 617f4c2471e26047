#pragma once
// This rank's sequences for one step, on their way from the shards to the device.

#include <exception>
#include <span>

#include "src/data/token_stream.hpp"
#include "src/data/uploader.hpp"
#include "src/run/run_setup.hpp"

namespace nanorun {

struct Batch {
  long step = -1;
  std::span<const Token> tokens;  ///< [rows(config), length_at(step) + 1]; valid until the next batch is read
  DeviceSequence first;           ///< the first row, on its way to the device
  Cursor after;                   ///< position in the training data after the step
  std::exception_ptr failure;     ///< why the tokens could not be read; null where they were

  /// Number of sequences, each a row of `tokens`.
  std::size_t rows(const Config& config) const;
};

/// Takes this rank's tokens of step `step`, the next one, from the loader, notes in which rows of tables they have
/// gradients, and starts the upload of the first sequence. Leaves an error in Batch::failure.
Batch read_batch(RunSetup& run, long step);

/// Starts the upload of sequence `row` of the batch.
DeviceSequence upload(RunSetup& run, const Batch& batch, std::size_t row);

}  // namespace nanorun
