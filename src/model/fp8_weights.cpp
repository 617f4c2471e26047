#include "src/model/fp8_weights.hpp"

#include <algorithm>

#include "src/base/instantiate.hpp"
#include "src/model/block_plan.hpp"

namespace nanorun {

using kernels::Mat;
using kernels::Stream;
using kernels::WorkspaceAllocator;

namespace {

/// The matrices of all layers.
template <class T>
std::vector<typename Fp8Weights<T>::Layer> take_layers(const Config& config, Fp8Product product,
                                                       WorkspaceAllocator& allocator) {
  const bool mlp = product == Fp8Product::mlp, backward = fp8_rules(config, product).backward;
  const int d = config.model.width, n = (mlp ? config.model.mlp_ratio : 3) * d;
  const auto take = [&](int rows, int cols) { return take_matrix<kernels::Fp8<T>>(allocator, rows, cols); };
  std::vector<typename Fp8Weights<T>::Layer> layers;
  for (const BlockPlan& plan : block_plans(config.model, Mode::training)) {
    typename Fp8Weights<T>::Layer& layer = layers.emplace_back();
    if (!mlp && !plan.attends) continue;
    layer.w_in = take(n, d);
    if (backward) layer.w_in_t = take(d, n);
    if (mlp) layer.w_out = take(d, n);
    if (mlp && backward) layer.w_out_t = take(n, d);
  }
  return layers;
}

}  // namespace

template <class T>
std::size_t Fp8Weights<T>::bytes(const Config& config, Fp8Product product) {
  WorkspaceAllocator counter({});
  if (fp8_rules(config, product).forward) take_layers<T>(config, product, counter);
  return counter.used();
}

template <class T>
Fp8Weights<T>::Fp8Weights(const Config& config, Fp8Product product, const Parameters<T>& parameters,
                          const Weights<T>& weights, Fp8ProductScales<T>& scales)
    : product_(product),
      parameters_(parameters),
      weights_(weights),
      scales_(scales),
      arena_(scales ? bytes(config, product) : 0, "the weights in 8 bits") {
  if (!scales) return;
  WorkspaceAllocator allocator(arena_.space());
  layers_ = take_layers<T>(config, product, allocator);
  const ParameterTable& table = parameters.weights.table();
  for (int i = 0; i < config.model.layers; ++i) {
    Place& place = places_.emplace_back();
    if (!layers_[i].w_in) continue;
    place.w_in = block_name(i, product == Fp8Product::mlp ? "mlp_in" : "qkv");
    place.w_in_at = table.find(place.w_in).offset;
    if (!layers_[i].w_out) continue;
    place.w_out = block_name(i, "mlp_out");
    place.w_out_at = table.find(place.w_out).offset;
  }
  made_of_.resize(layers_.size());
}

template <class T>
auto Fp8Weights<T>::present(int layer) const -> Origin {
  const Place& place = places_[layer];
  Origin origin{.step = scales_.steps_begun()};
  if (layers_[layer].w_in) origin.w_in = weights_.written(place.w_in_at);
  if (layers_[layer].w_out) origin.w_out = weights_.written(place.w_out_at);
  return origin;
}

template <class T>
void Fp8Weights<T>::prepare(Stream stream, int layer) {
  if (layers_.empty()) return;
  const int end = layer + parameters_.weights.table().layers_from(layer);
  const auto is_made = [&](int i) { return made_of_[i] == present(i); };
  bool all_made = true;
  for (int i = layer; i < end; ++i) all_made = all_made && is_made(i);
  if (all_made) return;
  std::vector<typename Fp8ProductScales<T>::Matrices> matrices;
  for (int i = layer; i < end; ++i) {
    auto& of = matrices.emplace_back();
    if (layers_[i].w_in) of.w_in = parameters_.weight(places_[i].w_in);
    if (layers_[i].w_out) of.w_out = parameters_.weight(places_[i].w_out);
  }
  scales_.measure(layer, matrices);
  std::vector<ops::Fp8Quantisation<T>> quantisations;
  for (int i = layer; i < end; ++i) {
    made_of_[i] = present(i);
    const Layer& to = layers_[i];
    const auto scale = scales_.of(i);
    const auto add = [&](const Mat<const T>& w, const Matrix& q, const Matrix& q_t, const auto& s) {
      if (!w) return;
      quantisations.push_back(
          {.x = w, .q = q, .q_t = q_t, .scale = s, .saturated = scales_.count(Fp8Count::weights, w.size())});
    };
    const auto& of = matrices[i - layer];
    add(of.w_in, to.w_in, to.w_in_t, scale.w_in);
    if (product_ == Fp8Product::mlp && of.w_in) quantisations.back().rows = ops::Fp8Rows::fused;
    add(of.w_out, to.w_out, to.w_out_t, scale.w_out);
    if (of.w_out) quantisations.back().rows = quantisations.back().rows_t = ops::Fp8Rows::fused;
  }
  if (!quantisations.empty()) ops::fp8_quantise<T>(stream, quantisations, {});
}

template <class T>
auto Fp8Weights<T>::of(int layer) const -> const Layer& {
  if (made_of_[layer] != present(layer)) throw Error(ExitCode::internal, "weights in 8 bits are not those of the step");
  return layers_[layer];
}

NANORUN_INSTANTIATE(class Fp8Weights);

}  // namespace nanorun
