#pragma once
// What a rank trains with: parameters, tensor communicator, gradients, model and optimizer. Each is built from the ones
// before it. Training and the tests share it.

#include "src/comm/comm.hpp"
#include "src/comm/tensor_comm.hpp"
#include "src/config/config.hpp"
#include "src/model/model.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/optimizer.hpp"
#include "src/optimizer/touched_rows.hpp"

namespace nanorun {

/// A rank's streams: one for ops, one for collectives on tensors, one for copies to the device.
struct Streams {
  kernels::Stream compute, collectives, upload;
};

/// T as in Model and Optimizer: Real, in tests of the CPU build also double.
template <class T>
struct Learner {
  /// Collective. Documents begin with `end_of_text`. The weights are undefined until the optimizer initialises or
  /// restores them. Throws Error(internal) where memory is short, Error(communication).
  Learner(const Config& config, Comm& comm, kernels::Token end_of_text, const Streams& streams);
  /// Collective, except while an exception unwinds (~Transport). Ends the collectives before their memory is freed.
  ~Learner() { tensor_comm.close(); }
  Learner(const Learner&) = delete;
  Learner& operator=(const Learner&) = delete;

  /// Collective. Runs each op once with every shape of training, so that no later call loads code or chooses an
  /// algorithm: passes over made-up sequences of each stage, and an update. Leaves weights undefined, gradients and
  /// state zero, so it is called before weights and state are initialised or copied to the device. Waits for the
  /// device.
  void warm_up(Trace& trace);
  /// Enqueues copies of the results of a step to the host: loss, sum of squares, largest magnitudes.
  void collect();

  Config config;           ///< computed_config(), to which model and optimizer refer
  kernels::Stream stream;  ///< stream of the ops
  TensorComm tensor_comm;
  ParameterTable table;
  Weights<T> weights;
  TouchedRows rows;  ///< training notes the next step's sequences; the optimizer asks in which rows they have gradients
  Gradients<T> gradients;
  Model<T> model;
  Optimizer<T> optimizer;
};

}  // namespace nanorun
