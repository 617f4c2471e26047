#include "src/model/rounded_gradients.hpp"

#include <algorithm>
#include <charconv>

#include "src/base/instantiate.hpp"
#include "src/model/params.hpp"

namespace nanorun {

namespace {

/// Of "block.<layer>.<tensor>".
int layer_of(const std::string& name) {
  int layer = -1;
  std::from_chars(name.data() + name.find('.') + 1, name.data() + name.size(), layer);
  return layer;
}

/// The tensors of Group::matrix by layer.
std::map<int, std::vector<const Parameter*>> matrices_by_layer(const ParameterTable& table) {
  std::map<int, std::vector<const Parameter*>> tensors;
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.group == Group::matrix) tensors[layer_of(parameter.name)].push_back(&parameter);
  }
  return tensors;
}

}  // namespace

template <class T>
RoundedGradients<T>::RoundedGradients(const ParameterTable& table, std::span<T> rounded, std::span<Wide> of_layer)
    : rounded_(rounded), of_layer_(of_layer), tensors_(matrices_by_layer(table)) {
  for (const auto& [layer, tensors] : tensors_) {
    std::size_t used = 0;
    for (const Parameter* const tensor : tensors) {
      places_[tensor->offset] = used;
      used += tensor->size();
    }
  }
}

template <class T>
auto RoundedGradients<T>::of_layer(const Parameter& parameter) const -> kernels::Mat<Wide> {
  return {of_layer_.data() + places_.at(parameter.offset), parameter.matrices * parameter.rows, parameter.cols};
}

template <class T>
void RoundedGradients<T>::keep(kernels::Stream stream, int layer, kernels::Output output) const {
  const auto found = tensors_.find(layer);
  if (found == tensors_.end()) return;
  for (const Parameter* const tensor : found->second) {
    const std::span<T> kept = rounded_.subspan(tensor->offset, tensor->size());
    const kernels::Mat<const Wide> gradient = of_layer(*tensor);
    if (output == kernels::Output::accumulate) {
      ops::add<T>(stream, kernels::Mat<T>(kept.data(), gradient.rows, gradient.cols), gradient);
    } else {
      ops::round_to<T>(stream, kept, elements(gradient));
    }
    if constexpr (std::is_same_v<T, Wide>) ops::round_as_bf16<T>(stream, kept);
  }
}

template <class T>
std::size_t RoundedGradients<T>::layer_size(const ParameterTable& table) {
  std::size_t most = 0;
  for (const auto& [layer, tensors] : matrices_by_layer(table)) {
    std::size_t size = 0;
    for (const Parameter* const tensor : tensors) size += tensor->size();
    most = std::max(most, size);
  }
  return most;
}

NANORUN_INSTANTIATE(class RoundedGradients);

}  // namespace nanorun
