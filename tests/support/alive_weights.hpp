#pragma once
// Weights that start at zero or at one value, moved from there, so that every mechanism and every gradient is alive.

#include <string>
#include <utility>
#include <vector>

#include "src/optimizer/hyperparameters.hpp"
#include "tests/support/learner.hpp"

namespace nanorun {

/// Uniform values of the parameter's random sequence for a slab of its weights.
inline std::vector<float> uniform_values(const Learner<Real>& learner, const Slab<float>& slab, double bound) {
  Parameter uniform = learner.table.find(slab.dataset.substr(std::string("/weights/").size()));
  uniform.init = Init::uniform;
  uniform.bound = bound;
  const kernels::Stream stream = test_streams().compute;
  const TensorArena<float> values(slab.data.size(), "uniform values");
  initialise<float>(stream, values.span(), {&uniform, slab.total_rows, slab.cols, slab.first_row, slab.row_count, 0},
                    learner.config.run.seed);
  HostView<float> host(values.span());
  host.download(stream);
  ops::synchronize(stream);
  return {host.span().begin(), host.span().end()};
}

/// Adds uniform values with these bounds to the weights whose names match the patterns, as the references do.
inline void make_alive(Learner<Real>& learner, const std::vector<std::pair<std::string, double>>& bounds) {
  for (const Slab<float>& slab : learner.optimizer.slabs()) {
    for (const auto& [pattern, bound] : bounds) {
      if (!matches("/weights/" + pattern, slab.dataset)) continue;
      const std::vector<float> more = uniform_values(learner, slab, bound);
      for (std::size_t i = 0; i < more.size(); ++i) slab.data[i] += more[i];
    }
  }
  learner.optimizer.restore();
}

}  // namespace nanorun
