#include "src/optimizer/gradient_clipping.hpp"

#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::acc_t;

template <class T>
GradientClipping<T>::GradientClipping(const Config& config, TensorComm& comm, kernels::Stream stream)
    : clip_norm_(config.optimizer.clip_norm),
      gradient_scale_(1.0 / config.train.sequences),
      comm_(comm),
      stream_(stream),
      squares_(stream, *this ? comm.size() : 0),
      factor_(*this ? 1 : 0) {
  if (*this) comm.share(of_parts());
}

template <class T>
void GradientClipping<T>::apply(Trace& trace, std::span<const OwnedBucket<T>> buckets, BucketTransfers<T>& transfers) {
  {
    Region region(trace, Phase::adam);
    ops::fill<double>(stream_, of_parts(), 0);
    for (const OwnedBucket<T>& owned : buckets) {
      owned.gradients.visit([&]<class A>(std::span<A> g) {
        ops::add_squares<A>(stream_, &of_parts()[comm_.part()], g, gradient_scale_);
      });
    }
  }
  transfers.all_gather_numbers(trace, of_parts());
  Region region(trace, Phase::adam);
  ops::clip_factor<acc_t<T>>(stream_, factor_.data(), of_parts(), clip_norm_);
  for (const OwnedBucket<T>& owned : buckets) {
    owned.gradients.visit([&]<class A>(std::span<A> g) { ops::scale_gradients<A>(stream_, g, factor_.data()); });
    owned.round_gradients(stream_);
  }
}

template <class T>
std::size_t GradientClipping<T>::bytes(const Config& config, int ranks) {
  return config.optimizer.clip_norm > 0 ? ranks * sizeof(double) + sizeof(acc_t<T>) : 0;
}

NANORUN_INSTANTIATE(class GradientClipping);

}  // namespace nanorun
