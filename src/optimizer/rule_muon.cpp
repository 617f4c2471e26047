#include "src/optimizer/rule_muon.hpp"

#include <algorithm>
#include <cmath>

#include "src/base/instantiate.hpp"
#include "src/config/schedule.hpp"

namespace nanorun {

using kernels::MuonBatch;

namespace {

const kernels::PolarIteration& named_iteration(Orthogonalisation orthogonalisation) {
  switch (orthogonalisation) {
    case Orthogonalisation::polar_express:
      return kernels::polar_express_iteration;
    case Orthogonalisation::six_maps:
      return kernels::six_maps_iteration;
    default:
      return kernels::newton_schulz_iteration;
  }
}

/// Moves the batches that have the shape of the first, or its transpose, and its format of momenta, to `shape`.
template <class T>
void split_shape(std::vector<MuonBatch<T>>& batches, std::vector<MuonBatch<T>>& shape) {
  const MuonBatch<T> first = batches.front();
  const auto other = [&](const MuonBatch<T>& b) {
    return std::minmax(b.rows, b.cols) != std::minmax(first.rows, first.cols) ||
           (b.momentum.narrow == nullptr) != (first.momentum.narrow == nullptr);
  };
  const auto same = std::stable_partition(batches.begin(), batches.end(), other);
  shape.assign(same, batches.end());
  batches.erase(same, batches.end());
}

template <class T>
kernels::Momentum<T> momentum_from(const StateSpan<T>& state, std::size_t first) {
  return kernels::Momentum<T>{state.wide.data(), state.narrow.data()}.from(first);
}

}  // namespace

std::vector<kernels::PolarStep> polar_steps(const OptimizerConfig& optimizer) {
  const std::span<const kernels::PolarStep> named = named_iteration(optimizer.orthogonalisation).steps;
  std::vector<kernels::PolarStep> steps(named.begin(), named.end());
  const std::vector<double>& maps = optimizer.orthogonalisation_maps;
  if (!maps.empty()) steps.clear();
  for (std::size_t i = 0; i + 2 < maps.size(); i += 3) steps.push_back({maps[i], maps[i + 1], maps[i + 2]});
  const kernels::PolarStep last = steps.back();
  if (optimizer.orthogonalisation_steps > 0) steps.resize(optimizer.orthogonalisation_steps, last);
  return steps;
}

template <class T>
MuonRule<T>::MuonRule(const Config& config, kernels::Stream)
    : config_(config),
      steps_(polar_steps(config.optimizer)),
      iteration_{named_iteration(config.optimizer.orthogonalisation).norm_factor,
                 named_iteration(config.optimizer.orthogonalisation).eps, steps_} {}

template <class T>
RuleTraits MuonRule<T>::traits() {
  const auto read = [](const Config& config, Hyperparameters& hyper) {
    hyper.decay = config.optimizer.muon_decay;
    hyper.truncates = config.optimizer.muon_truncates;
    hyper.moments = config.optimizer.muon_moments;
  };
  const std::vector<std::string> decide_second_moments = {"optimizer.normuon_beta", "optimizer.muon_block_heads",
                                                          "model.heads", "model.head_dim"};
  return {.rule = Rule::muon,
          .name = "muon",
          .title = "Muon",
          .state = {{momentum}, {second_moment, decide_second_moments}, {slow_momentum, {"optimizer.slow_momentum"}}},
          .read = read};
}

template <class T>
std::vector<StateTensor> MuonRule<T>::state(const OwnedRows& rows) const {
  std::vector<StateTensor> state{{momentum, rows}};
  if (config_.optimizer.normuon_beta > 0) {
    state.push_back(
        {second_moment, second_moment_rows(config_, rows), /*keeps_fp32=*/rows.parameter->group == Group::matrix});
  }
  if (config_.optimizer.slow_momentum > 0 && rows.parameter->group == Group::matrix) {
    state.push_back({slow_momentum, rows});
  }
  return state;
}

template <class T>
std::size_t MuonRule<T>::scratch_bytes(const RankLoad& load) const {
  std::vector<MuonBatch<T>> batches, shape;
  for (const std::vector<OwnedRows>& bucket : load) {
    if (are_scalars(bucket)) continue;
    for (const MuonBlocks& blocks : blocks_of(config_, bucket)) {
      batches.push_back({blocks.count, blocks.rows, blocks.cols});
    }
  }
  std::size_t bytes = 0;
  while (!batches.empty()) {
    split_shape(batches, shape);
    bytes = std::max(bytes, ops::muon_workspace<T>(shape));
  }
  return bytes;
}

/// X Xᵀ, A A and B X in each step, two operations for each product.
template <class T>
double MuonRule<T>::work(const RankLoad& load) const {
  double flops = 0;
  for (const std::vector<OwnedRows>& bucket : load) {
    for (const MuonBlocks& blocks : blocks_of(config_, bucket)) {
      const double narrow = std::min(blocks.rows, blocks.cols), wide = std::max(blocks.rows, blocks.cols);
      flops += blocks.count * (4 * narrow * narrow * wide + 2 * narrow * narrow * narrow);
    }
  }
  return static_cast<double>(steps_.size()) * flops;
}

template <class T>
void MuonRule<T>::adopt(const ParameterTable&, const OwnedBucket<T>& owned, int) {
  blocks_[owned.index] = blocks_of(config_, owned.tensors);
}

template <class T>
void MuonRule<T>::update(const UpdateContext& context, std::span<const OwnedBucket<T>* const> buckets, long step) {
  Region region(context.trace, Phase::muon);
  const kernels::MuonSquares squares{context.squares, context.squares + 1};
  batches_.clear();
  for (const OwnedBucket<T>* const owned : buckets) {
    if (owned->bucket.scalars()) {
      update_scalars(context.stream, *owned, squares, step);
    } else {
      add_batches(*owned, step);
    }
  }
  while (!batches_.empty()) {
    split_shape(batches_, shape_);
    ops::muon_update<T>(context.stream, shape_, options(step), squares, context.scratch);
  }
}

template <class T>
kernels::MuonOptions MuonRule<T>::options(long step) const {
  const OptimizerConfig& o = config_.optimizer;
  const double m = muon_momentum(config_, step);
  const bool mixes = o.slow_momentum > 0 && step >= o.momentum_mix_from;
  return {.iteration = iteration_,
          .momentum = m,
          .gradient_scale = 1.0 / config_.train.sequences,
          .normuon_beta = o.normuon_beta,
          .fast_momentum = mixes ? o.fast_momentum : m,
          .slow_momentum = o.slow_momentum,
          .momentum_mix = mixes ? o.momentum_mix : 1};
}

template <class T>
auto MuonRule<T>::rates(const Hyperparameters& hyper, const Bucket& bucket, long step) const -> Rates {
  const double factor = lr_factor(config_, step), rate = hyper.lr * factor,
               lr = rate * std::sqrt(std::max(1.0, static_cast<double>(bucket.rows) / bucket.cols));
  const bool cautious = config_.optimizer.decay_kind == DecayKind::cautious;
  return {lr, cautious ? lr * hyper.decay * config_.optimizer.muon_lr * factor : rate * hyper.decay};
}

/// Appends the blocks of a bucket to batches_.
template <class T>
void MuonRule<T>::add_batches(const OwnedBucket<T>& owned, long step) {
  const bool normuon = config_.optimizer.normuon_beta > 0, has_slow = config_.optimizer.slow_momentum > 0;
  std::size_t first = 0, first_moment = 0;
  for (const MuonBlocks& blocks : blocks_.at(owned.index)) {
    const auto [lr, decay] = rates(blocks.hyper, owned.bucket, step);
    const kernels::Momentum<T> gradients = momentum_from(owned.gradients, first);
    batches_.push_back({.count = blocks.count,
                        .rows = blocks.rows,
                        .cols = blocks.cols,
                        .weights = owned.master.wide.data() + first,
                        .gradients = gradients.wide,
                        .momentum = momentum_from(owned.state[0], first),
                        .copy = owned.weights.data() + first,
                        .second_moment = normuon ? owned.state[1].wide.data() + first_moment : nullptr,
                        .lr = lr,
                        .decay = decay,
                        .cautious = config_.optimizer.decay_kind == DecayKind::cautious,
                        .truncates = blocks.hyper.truncates,
                        .slow_momentum = has_slow ? momentum_from(owned.state.back(), first) : kernels::Momentum<T>{},
                        .round_momenta = blocks.hyper.moments == StateFormat::bf16,
                        .narrow_gradients = gradients.narrow});
    first += batches_.back().size();
    first_moment += blocks.second_moment_size();
  }
}

template <class T>
void MuonRule<T>::update_scalars(kernels::Stream stream, const OwnedBucket<T>& owned,
                                 const kernels::MuonSquares& squares, long step) const {
  const bool normuon = config_.optimizer.normuon_beta > 0;
  std::size_t first = 0, first_moment = 0;
  for (const MuonBlocks& blocks : blocks_.at(owned.index)) {
    const auto [lr, decay] = rates(blocks.hyper, owned.bucket, step);
    const kernels::ScalarMatrices<Master> matrices{
        .count = blocks.count,
        .rows = blocks.rows,
        .cols = blocks.cols,
        .weights = owned.master.wide.data() + first,
        .gradients = owned.gradients.wide.data() + first,
        .momentum = owned.state[0].wide.data() + first,
        .second_moment = normuon ? owned.state[1].wide.data() + first_moment : nullptr,
        .lr = lr,
        .decay = decay,
        .cautious = config_.optimizer.decay_kind == DecayKind::cautious,
        .round_weights = blocks.hyper.master == StateFormat::bf16,
        .round_moments = blocks.hyper.moments == StateFormat::bf16};
    ops::muon_scalars<Master>(stream, matrices, options(step), squares);
    first += blocks.count * matrices.matrix_size();
    first_moment += static_cast<std::size_t>(blocks.count) * blocks.rows;
  }
}

NANORUN_INSTANTIATE(class MuonRule);

}  // namespace nanorun
