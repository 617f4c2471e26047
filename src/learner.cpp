#include "src/learner.hpp"

namespace nanorun {

template <class T>
Learner<T>::Learner(const Config& config_, Comm& comm, kernels::Token end_of_text, const Streams& streams)
    : config(config_),
      table(config.model),
      weights(table),
      tensor_comm(comm, streams.collectives, config.comm),
      gradients(table.size(), "the gradients"),
      model(config, table, weights, gradients.span(), end_of_text, streams.compute, streams.upload),
      optimizer(config, table, weights, gradients.span(), tensor_comm, streams.compute) {}

template struct Learner<Real>;
#if !NANORUN_CUDA
template struct Learner<double>;
#endif

}  // namespace nanorun
