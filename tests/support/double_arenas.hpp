#pragma once
// What a model or an optimizer in double works on, for tests on hosts.

#include "src/arena.hpp"
#include "src/config.hpp"
#include "src/params.hpp"
#include "src/tensor_comm.hpp"
#include "src/trace.hpp"
#include "tests/support/environment.hpp"

namespace nanorun {

struct DoubleArenas {
  explicit DoubleArenas(const Config& config)
      : config(config),
        table(config.model),
        weights(table),
        tensor_comm(test_comm(), {}),
        gradients(table.size()),
        trace(test_comm(), {}, this->config.trace, "", 0) {}

  Config config;
  ParameterTable table;
  Weights<double> weights;
  TensorComm tensor_comm;
  TensorArena<double> gradients;
  Trace trace;
};

}  // namespace nanorun
