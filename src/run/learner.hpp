#pragma once
// What a rank trains with: parameters, communicator of tensors, gradients, model and optimizer, each built from those
// before it. Training and the tests share it.

#include "src/comm/comm.hpp"
#include "src/comm/tensor_comm.hpp"
#include "src/config/config.hpp"
#include "src/model/model.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/optimizer.hpp"
#include "src/optimizer/touched_rows.hpp"

namespace nanorun {

/// Streams of a rank: of ops, of collectives on tensors, and of copies to the device.
struct Streams {
  kernels::Stream compute, collectives, upload;
};

/// T as in Model and Optimizer: Real, in tests of the CPU build also double.
template <class T>
struct Learner {
  /// Collective. Documents begin with `end_of_text`. The weights are undefined until the optimizer initialises or
  /// restores them. Throws Error(internal) where memory is short, Error(communication).
  Learner(const Config& config, Comm& comm, kernels::Token end_of_text, const Streams& streams);
  /// Collective, except while an exception unwinds (~Transport). Collectives end before the memory goes that they work
  /// on.
  ~Learner() { tensor_comm.close(); }
  Learner(const Learner&) = delete;
  Learner& operator=(const Learner&) = delete;

  /// Collective. Runs each op once with every shape of training, so that no later call loads code or chooses an
  /// algorithm: passes over made-up sequences of each stage, and an update. Called before weights and state are
  /// initialised or restored: it leaves weights undefined, gradients and state zero. Waits for the device.
  void warm_up(Trace& trace);
  /// Enqueues the copies to the host of what it needs at the end of a step: loss, sum of squares, largest magnitudes.
  void collect();

  Config config;           ///< a copy, to which model and optimizer refer
  kernels::Stream stream;  ///< of ops
  ParameterTable table;
  Weights<T> weights;
  TensorComm tensor_comm;
  TouchedRows rows;  ///< training notes the sequences of the next step, the optimizer reads which rows they touch
  TensorArena<kernels::acc_t<T>> gradients;
  Model<T> model;
  Optimizer<T> optimizer;
};

}  // namespace nanorun
