#include "src/run/learner.hpp"

#include <algorithm>

#include "src/base/instantiate.hpp"
#include "src/config/schedule.hpp"

namespace nanorun {

using kernels::Token;

template <class T>
Learner<T>::Learner(const Config& config_, Comm& comm, Token end_of_text, const Streams& streams)
    : config(computed_config(config_)),
      stream(streams.compute),
      tensor_comm(comm, streams.collectives, config.comm),
      table(parameter_table(config, tensor_comm.layout().nodes())),
      weights(table),
      rows(config, table, tensor_comm.comms()),
      gradients(config, table),
      model(config, table, weights, gradients.spans(), end_of_text, streams.compute, streams.upload),
      optimizer(config, table, weights, gradients.spans(), model.idle(), tensor_comm, rows, streams.compute) {}

/// Each length has GEMMs of other shapes, and GEMMs that add to gradients differ from those that overwrite them. The
/// shapes of validation are left to the first validation, for which no step waits.
template <class T>
void Learner<T>::warm_up(Trace& trace) {
  optimizer.initialise(config.run.seed);
  const bool several = config.train.sequences > tensor_comm.size(), keeps = optimizer.period() > 1;
  for (int stage = 0; stage < stage_count(config); ++stage) {
    const long step = stage_steps(config, stage).first;
    const CandidateDraw draw = candidate_draw(config, step, 0);
    const int tokens = draw.count == 0 ? config.model.vocabulary : std::min(config.model.vocabulary, draw.count);
    std::vector<Token> row(length_at(config, step) + 1);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<Token>(i * 7919 % tokens);
    const auto pass = [&](const typename Model<T>::Accumulate& accumulate) {
      const DeviceSequence sequence = model.upload(trace, Sequence::of(row), windows_at(config, step), draw);
      optimizer.read_rows(trace, sequence, step);
      model.forward_backward(trace, sequence, step, accumulate);
    };
    pass({});
    if (several || keeps) pass({.matrices = several, .others = true});
  }
  optimizer.warm_up(trace);
  model.loss().collect(stream);
  model.fp8_scales().restore(0, {});
  gradients.clear(stream);
  ops::synchronize(stream);
}

template <class T>
void Learner<T>::collect() {
  model.loss().collect(stream);
  optimizer.collect();
  model.fp8_scales().collect();
}

NANORUN_INSTANTIATE(struct Learner);

}  // namespace nanorun
