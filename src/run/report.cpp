#include "src/run/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/text.hpp"
#include "src/comm/tensor_comm.hpp"
#include "src/config/schedule.hpp"
#include "src/model/model.hpp"
#include "src/optimizer/optimizer.hpp"
#include "src/optimizer/update_rules.hpp"

namespace nanorun {

namespace {

/// Of the weights that every rank holds.
double weight_bytes(const ParameterTable& table) {
  const auto tensors = static_cast<double>(table.tensor_size()), all = static_cast<double>(table.size());
  return tensors * sizeof(Real) + (all - tensors) * sizeof(kernels::acc_t<Real>);
}

/// Bytes that a rank sends in one step, on average: its copies of all parts but its own, then its own part to all
/// others. Of lookup tables only the rows travel that it has read, at most one for each token; the weights of Adam's
/// tensors travel when they are updated.
double bytes_sent_per_step(const Config& config, const ParameterTable& table, int ranks) {
  const double gradient = kernels::wire_bytes<kernels::acc_t<Real>>(config.comm.gradients);
  const double tokens = static_cast<double>(config.train.sequences) / ranks * longest_length(config);
  double bytes = 0;
  for (const Bucket& bucket : table.buckets()) {
    if (bucket.fixed()) continue;
    const auto units = static_cast<double>(bucket.units), unit = static_cast<double>(bucket.unit_size);
    const double rows = bucket.lookup == Lookup::none ? units : std::min(units, tokens);
    const double weight = bucket.scalars() ? sizeof(kernels::acc_t<Real>) : sizeof(Real);
    bytes += rows * unit * gradient +
             units * unit * weight / (bucket.group == Group::matrix ? 1 : config.optimizer.adam_period);
  }
  return bytes * (ranks - 1) / ranks;
}

/// Tokens and FLOPs of a step, of every stage where there are stages.
std::vector<std::pair<std::string, std::string>> work_rows(const Config& config, const ParameterTable& table) {
  const auto flops = [&](long step) {
    return in_units(config.train.sequences * flops_per_sequence(config, table, step), "FLOP");
  };
  if (config.stage.empty()) {
    return {{"tokens per step", std::to_string(step_tokens(config, 0))},
            {"FLOPs per step, widest window", flops(config.train.steps)}};
  }
  std::vector<std::pair<std::string, std::string>> rows;
  for (int stage = 0; stage < stage_count(config); ++stage) {
    const auto [first, end] = stage_steps(config, stage);
    rows.emplace_back(fmt::format("stage {}, {} steps", stage, end - first),
                      fmt::format("{} tokens and {} per step", step_tokens(config, first), flops(first)));
  }
  rows.emplace_back("tokens of all steps", std::to_string(tokens_before(config, config.train.steps)));
  return rows;
}

}  // namespace

std::string plan(const Config& config, const ParameterTable& table, int ranks) {
  const double gradients = static_cast<double>(table.gradient_size()) * sizeof(kernels::acc_t<Real>);
  const double weights = weight_bytes(table);
  const auto state =
      static_cast<double>(Optimizer<Real>::state_bytes(config, table, ranks, Model<Real>::idle_bytes(config)));
  const auto activations = static_cast<double>(Model<Real>::memory_bytes(config));
  const auto buffers = static_cast<double>(TensorComm::memory_bytes(ranks, config.comm));
  std::string text;
  const auto row = [&](const char* what, const std::string& value) { text += fmt::format("{:<32} {}\n", what, value); };
  row("ranks", std::to_string(ranks));
  row("parameters", fmt::format("{} ({})", table.size(), in_units(static_cast<double>(table.size()), "")));
  constexpr double runtime = ops::runtime_bytes;
  row("memory per rank", in_units(weights + gradients + state + activations + buffers + runtime, "B", 1024));
  row("  weights", in_units(weights, "B", 1024));
  row("  gradients", in_units(gradients, "B", 1024));
  row("  optimizer state and scratch", in_units(state, "B", 1024));
  row("  activations", in_units(activations, "B", 1024));
  row("  buffers of collectives", in_units(buffers, "B", 1024));
  if (runtime > 0) row("  CUDA and cuBLAS, at most", in_units(runtime, "B", 1024));
  for (const auto& [what, value] : work_rows(config, table)) row(what.c_str(), value);
  row("bytes sent per rank and step", in_units(bytes_sent_per_step(config, table, ranks), "B", 1024));
  for (const std::string& warning : group_warnings(config, table)) text += warning + "\n";
  return text;
}

}  // namespace nanorun
