#pragma once
// The lines of the log: its head, the progress of steps, validations.

#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/measure/metrics.hpp"
#include "src/model/fp8_scales.hpp"
#include "src/model/params.hpp"
#include "src/run/provenance.hpp"

namespace nanorun {

/// What the head of the log says beside the deck.
struct LogHead {
  const Provenance& provenance;
  const ParameterTable& table;
  int ranks;
  std::string output;                        ///< the run's directory
  std::string device;                        ///< model of the device
  std::string transport;                     ///< TensorComm::transport()
  std::vector<std::string> transport_notes;  ///< TensorComm::notes()
  std::string device_note;                   ///< Context::device_note()
  std::string kernels = {};                  ///< ops::device_kernels() of the device
};
/// The head of the log: program and start, model, output, device, and warnings of groups that name no tensor and of a
/// head.scale_g that does not suit the deck.
std::vector<std::string> opening_lines(const Config& config, const LogHead& head);

/// The progress line of one of `steps` steps: step, loss, window, time, tokens per second, MFU where it is known, and
/// how long the run still takes.
std::string format_step(const StepMetrics& step, long steps, double seconds_left);

/// "the loss is NaN", or "infinite".
std::string non_finite_text(const std::string& name, double value);

/// The line of what has saturated of a product's operands in 8 bits since the last such line, as shares of their
/// elements; empty where nothing was counted.
std::string format_saturation(long step, const std::string& product, const Fp8Saturation& shares);

/// The line of a validation after `step` of `steps` updates, which took train_seconds.
std::string format_validation(long step, long steps, double loss, double train_seconds);

}  // namespace nanorun
