#pragma once
// Training without files: the step loop on tokens held in memory, for tests that look at losses, gradients and
// weights.

#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "src/model.hpp"
#include "src/optimizer.hpp"
#include "src/schedule.hpp"

namespace nanorun {

inline std::string read_text(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Tokens of a speedrun .bin file.
inline std::vector<kernels::Token> read_bin_tokens(const std::string& path) {
  const std::string bytes = read_text(path);
  constexpr std::size_t header = 256 * sizeof(std::int32_t);
  if (bytes.size() < header) throw std::runtime_error(path + " is too short for a .bin file");
  std::vector<kernels::Token> tokens((bytes.size() - header) / sizeof(kernels::Token));
  std::copy_n(bytes.data() + header, tokens.size() * sizeof(kernels::Token), reinterpret_cast<char*>(tokens.data()));
  return tokens;
}

class TinyTraining {
 public:
  TinyTraining(const Config& config, std::vector<kernels::Token> tokens, kernels::Token end_of_text, Comm& comm)
      : config_(config),
        comm_(comm),
        tokens_(std::move(tokens)),
        table_(config.model),
        weights_(table_.size()),
        gradients_(table_.size()),
        trace_(comm, {}, untraced(), "", 0),
        model_(config_, table_, weights_.span(), gradients_.span(), end_of_text),
        optimizer_(config_, table_, weights_.span(), gradients_.span(), comm) {
    initialise(weights_.span(), table_, config.run.seed, comm);
    ops::fill<float>({}, gradients_.span(), 0);
  }

  /// Loss and gradients of the next step, summed over this rank's sequences; returns the mean loss over all ranks.
  double forward_backward() {
    const int local = config_.train.sequences / comm_.size();
    const std::size_t length = config_.train.length;
    double loss = 0;
    for (int j = comm_.rank() * local; j < (comm_.rank() + 1) * local; ++j) {
      const std::size_t at = (static_cast<std::size_t>(step_) * config_.train.sequences + j) * length;
      const std::span<const kernels::Token> row(&tokens_.at(at), length + 1);
      if (at + length + 1 > tokens_.size()) throw std::runtime_error("too few tokens");
      loss += model_.forward_backward({}, trace_, Sequence::of(row),
                                      long_window(config_.window, step_, config_.train.steps));
    }
    return comm_.all_reduce(loss, Reduce::sum) / config_.train.sequences;
  }

  void update() { optimizer_.step({}, trace_, step_++); }

  std::vector<double> run(int steps) {
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) {
      losses.push_back(forward_backward());
      update();
    }
    return losses;
  }

  const ParameterTable& table() const { return table_; }
  std::span<const float> weights() const { return weights_.span(); }
  std::span<const float> gradients() const { return gradients_.span(); }

 private:
  static TraceConfig untraced() {
    TraceConfig config;
    config.enabled = false;
    return config;
  }

  Config config_;
  Comm& comm_;
  std::vector<kernels::Token> tokens_;
  ParameterTable table_;
  TensorArena<float> weights_, gradients_;
  Trace trace_;
  Model<float> model_;
  Optimizer<float> optimizer_;
  long step_ = 0;
};

/// l2 norm of a tensor that lies in an arena.
inline double tensor_norm(const Parameter& p, std::span<const float> arena) {
  return std::sqrt(ops::sum_of_squares<float>({}, arena.subspan(p.offset, p.size())));
}

}  // namespace nanorun
