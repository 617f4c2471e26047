#include "src/model/coefficients.hpp"

#include "src/base/arena.hpp"
#include "src/base/instantiate.hpp"

namespace nanorun {

using kernels::acc_t;
using kernels::Mat;
using kernels::Stream;
using kernels::WorkspaceAllocator;

namespace {

/// Rows begin at whole vectors, as ops on devices ask for.
template <class T>
Mat<T> take_hidden(WorkspaceAllocator& allocator, int rows, int cols) {
  constexpr int vector = 8;
  const int ld = kernels::ceil_div(cols, vector) * vector;
  return take_matrix<T>(allocator, rows, ld).col_block(0, cols);
}

}  // namespace

template <class T>
CoefficientActivations<T>::CoefficientActivations(const ModelConfig& model, int length, Mode mode,
                                                  WorkspaceAllocator& allocator) {
  const int hidden = model.coefficient_width;
  const bool training = mode == Mode::training;
  for (const NetPlan& plan : coefficient_nets(model)) {
    const int columns = plan.outputs();
    Net net;
    net.c = take_matrix<acc_t<T>>(allocator, length, columns);
    net.z = take_hidden<T>(allocator, length, hidden);
    if (training) net.d_c = take_matrix<acc_t<T>>(allocator, length, columns);
    nets.push_back(net);
  }
  if (training && !nets.empty()) d_z = take_hidden<T>(allocator, length, hidden);
}

template <class T>
Coefficients<T>::Coefficients(const ModelConfig& model, const Parameters<T>& parameters)
    : plans_(coefficient_nets(model)) {
  for (const NetPlan& plan : plans_) {
    ops::CoefficientNet<T> net;
    net.w_in = parameters.weight(plan.name + ".in");
    net.w_out = parameters.scalars(plan.name + ".out");
    net.bias = elements(parameters.scalars(plan.name + ".bias"));
    net.constant = plan.constant;
    if (plan.learned_scale) net.scalar = parameters.factor("gate_net.scale");
    nets_.push_back(net);
    gradients_.push_back({parameters.gradient(plan.name + ".in"), parameters.d_scalars(plan.name + ".out"),
                          elements(parameters.d_scalars(plan.name + ".bias"))});
  }
}

template <class T>
void Coefficients<T>::forward(Stream stream, const CoefficientActivations<T>& a, int layer_input,
                              Mat<const T> x) const {
  for (std::size_t i = 0; i < plans_.size(); ++i) {
    if (plans_[i].layer_input != layer_input) continue;
    ops::coefficient_net_forward<T>(stream, a.nets[i].c, a.nets[i].z, x, nets_[i]);
  }
}

template <class T>
void Coefficients<T>::clear_gradients(Stream stream, const CoefficientActivations<T>& a) const {
  for (const auto& net : a.nets) ops::fill<acc_t<T>>(stream, elements(net.d_c), 0);
}

template <class T>
void Coefficients<T>::backward(Stream stream, const CoefficientActivations<T>& a, int layer_input, Mat<T> d_x,
                               Mat<const T> x) const {
  for (std::size_t i = 0; i < plans_.size(); ++i) {
    if (plans_[i].layer_input != layer_input) continue;
    const auto& net = a.nets[i];
    ops::coefficient_net_backward<T>(stream, d_x, gradients_[i], a.d_z, net.d_c, net.z, x, nets_[i]);
  }
}

template <class T>
auto Coefficients<T>::find(const std::string& columns) const -> Range {
  for (std::size_t i = 0; i < plans_.size(); ++i) {
    int first = 0;
    for (const NetColumns& known : plans_[i].columns) {
      if (known.name == columns) return {static_cast<int>(i), first, known.count};
      first += known.count;
    }
  }
  return {};
}

template <class T>
Gate<T> Coefficients<T>::gate(const CoefficientActivations<T>& a, const std::string& columns) const {
  const Range range = find(columns);
  const auto& net = a.nets.at(range.net);
  Gate<T> gate;
  gate.value = net.c.col_block(range.first, range.count);
  if (net.d_c) gate.gradient = net.d_c.col_block(range.first, range.count);
  return gate;
}

template <class T>
ops::PerToken<T> Coefficients<T>::factor(const CoefficientActivations<T>& a, const std::string& column) const {
  const Gate<T> gate = this->gate(a, column);
  return {gate.value.data, gate.gradient.data, gate.value.ld};
}

NANORUN_INSTANTIATE(struct CoefficientActivations);
NANORUN_INSTANTIATE(class Coefficients);

}  // namespace nanorun
