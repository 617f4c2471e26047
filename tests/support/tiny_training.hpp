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
        weights_(table_),
        tensor_comm_(comm, streams_.comm.stream),
        gradients_(table_.size()),
        trace_(comm, streams_.compute.stream, untraced(), "", 0),
        model_(config_, table_, weights_, gradients_.span(), end_of_text,
               {streams_.compute.stream, streams_.upload.stream}),
        optimizer_(config_, table_, weights_, gradients_.span(), tensor_comm_, streams_.compute.stream) {
    optimizer_.initialise(config.run.seed);
  }

  /// Loss and gradients of the next step, summed over this rank's sequences and not yet over the ranks; returns the
  /// mean loss over all ranks.
  double forward_backward() {
    const int local = config_.train.sequences / comm_.size();
    const std::size_t length = config_.train.length;
    for (int j = comm_.rank() * local; j < (comm_.rank() + 1) * local; ++j) {
      const std::size_t at = (static_cast<std::size_t>(step_) * config_.train.sequences + j) * length;
      if (at + length + 1 > tokens_.size()) throw std::runtime_error("too few tokens");
      const bool first = j == comm_.rank() * local;
      const DeviceSequence sequence = model_.upload(Sequence::of(std::span(tokens_).subspan(at, length + 1)),
                                                    long_window(config_.window, step_, config_.train.steps));
      model_.forward_backward(trace_, sequence, first ? Model<Real>::Gradients::none : Model<Real>::Gradients::sums);
    }
    model_.loss().collect(streams_.compute.stream);
    ops::synchronize(streams_.compute.stream);
    const double loss = model_.loss().value() / static_cast<double>(length);
    return comm_.all_reduce(loss, Reduce::sum) / config_.train.sequences;
  }

  void update() {
    for (int layer = config_.model.layers; layer >= -1; --layer) optimizer_.start_reduce_scatter(trace_, layer, step_);
    optimizer_.step(trace_, step_++);
    ops::synchronize(streams_.comm.stream);
  }

  std::vector<double> run(int steps) {
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) {
      losses.push_back(forward_backward());
      update();
    }
    return losses;
  }

  const Config& config() const { return config_; }
  const ParameterTable& table() const { return table_; }
  Optimizer<Real>& optimizer() { return optimizer_; }
  /// l2 norm of the parameter's weights (the masters of this rank's part), or of its gradient.
  double weight_norm(const Parameter& p) {
    for (const Slab<float>& slab : optimizer_.slabs()) {
      if (slab.dataset == "/weights/" + p.name) return std::sqrt(comm_.all_reduce(squares(slab.data), Reduce::sum));
    }
    throw std::runtime_error("no weights of " + p.name);
  }
  double gradient_norm(const Parameter& p) {
    HostView<float> view(gradients_.span().subspan(p.offset, p.size()));
    view.download(streams_.compute.stream);
    ops::synchronize(streams_.compute.stream);
    return std::sqrt(squares(view.span()));
  }

 private:
  struct OwnedStream {
    explicit OwnedStream(bool products) : stream(ops::create_stream(products)) {}
    ~OwnedStream() { ops::destroy_stream(stream); }
    OwnedStream(const OwnedStream&) = delete;
    OwnedStream& operator=(const OwnedStream&) = delete;
    kernels::Stream stream;
  };
  struct Streams {
    OwnedStream compute{true}, comm{false}, upload{false};
  };

  static TraceConfig untraced() {
    TraceConfig config;
    config.enabled = false;
    return config;
  }
  static double squares(std::span<const float> values) {
    double sum = 0;
    for (const double x : values) sum += x * x;
    return sum;
  }

  Config config_;
  Comm& comm_;
  std::vector<kernels::Token> tokens_;
  ParameterTable table_;
  Streams streams_;
  Weights<Real> weights_;
  TensorComm tensor_comm_;
  TensorArena<float> gradients_;
  Trace trace_;
  Model<Real> model_;
  Optimizer<Real> optimizer_;
  long step_ = 0;
};

}  // namespace nanorun
