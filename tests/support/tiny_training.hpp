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

#include "src/config/schedule.hpp"
#include "tests/support/bf16.hpp"
#include "tests/support/learner.hpp"

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

class TinyTraining : public Learner<Real> {
 public:
  /// After device_ready().
  TinyTraining(const Config& config, std::vector<kernels::Token> tokens, kernels::Token end_of_text, Comm& comm)
      : Learner(config, comm, end_of_text, test_streams()),
        comm_(comm),
        tokens_(std::move(tokens)),
        trace_(untraced(comm, stream_)) {
    optimizer.initialise(config.run.seed);
  }

  /// Whether only those rows of tables travel in which a step has gradients, as in a run; else whole tables do.
  bool notes_rows = false;

  /// Loss and gradients of the next step, summed over this rank's sequences and not yet over the ranks; returns the
  /// mean loss over all ranks.
  double forward_backward() {
    const int local = config.train.sequences / comm_.size();
    const std::size_t length = length_at(config, step_);
    if (notes_rows) note_rows();
    optimizer.begin_step(step_);
    for (int j = comm_.rank() * local; j < (comm_.rank() + 1) * local; ++j) {
      const bool first = j == comm_.rank() * local;
      const DeviceSequence sequence =
          model.upload(trace_, Sequence::of(tokens_of(j)), windows_at(config, step_), candidate_draw(config, step_, j));
      optimizer.read_rows(trace_, sequence, step_);
      model.forward_backward(trace_, sequence, step_,
                             {.matrices = !first,
                              .others = !first || optimizer.keeps_gradients(step_),
                              .cleared = optimizer.clears_gradients()});
    }
    model.loss().collect(stream_);
    model.fp8_scales().collect();
    ops::synchronize(stream_);
    model.fp8_scales().share(comm_);
    const double loss = model.loss().value() / static_cast<double>(length);
    return comm_.all_reduce(loss, Reduce::sum) / config.train.sequences;
  }

  void update() {
    for (int layer = config.model.layers; layer >= -1; --layer) optimizer.start_reduce_scatter(trace_, layer, step_);
    optimizer.step(trace_, step_++);
    ops::synchronize(tensor_comm.stream());
  }

  std::vector<double> run(int steps) {
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) {
      losses.push_back(forward_backward());
      update();
    }
    return losses;
  }

  /// l2 norm of the parameter's weights (the masters of this rank's part), or of its gradient.
  double weight_norm(const Parameter& p) {
    for (const Slab<float>& slab : optimizer.slabs()) {
      if (slab.dataset == "/weights/" + p.name)
        return std::sqrt(comm_.all_reduce(squares<float>(slab.data), Reduce::sum));
    }
    throw std::runtime_error("no weights of " + p.name);
  }
  double gradient_norm(const Parameter& p) {
    const std::size_t at = table.gradient_at(p.offset), rounded = gradients.matrices().size();
    if (at < rounded) return device_norm(gradients.matrices().subspan(at, p.size()));
    return device_norm(gradients.span().subspan(at - rounded, p.size()));
  }

 private:
  template <class T>
  double device_norm(std::span<T> values) {
    HostView<T> view(values);
    view.download(stream_);
    ops::synchronize(stream_);
    return std::sqrt(squares(std::span<const T>(view.span())));
  }

  void note_rows() {
    std::vector<kernels::Token> own;
    const int local = config.train.sequences / comm_.size();
    for (int j = comm_.rank() * local; j < (comm_.rank() + 1) * local; ++j) {
      const std::span<const kernels::Token> row = tokens_of(j);
      own.insert(own.end(), row.begin(), row.end());
    }
    rows.read(own, step_);
    rows.exchange();
  }

  /// A sequence of this step, and its last target.
  std::span<const kernels::Token> tokens_of(int sequence) const {
    const std::size_t at = place(step_, sequence), size = length_at(config, step_) + 1;
    if (at + size > tokens_.size()) throw std::runtime_error("too few tokens");
    return std::span(tokens_).subspan(at, size);
  }

  /// Where a sequence's tokens begin. With stages each has its own last target.
  std::size_t place(long step, int sequence) const {
    if (config.stage.empty())
      return (static_cast<std::size_t>(step) * config.train.sequences + sequence) * config.train.length;
    std::size_t at = 0;
    for (long s = 0; s < step; ++s) at += static_cast<std::size_t>(config.train.sequences) * (length_at(config, s) + 1);
    return at + static_cast<std::size_t>(sequence) * (length_at(config, step) + 1);
  }

  template <class T>
  static double squares(std::span<const T> values) {
    double sum = 0;
    for (const T value : values) {
      const double x = kernels::test::to_float(value);
      sum += x * x;
    }
    return sum;
  }

  Comm& comm_;
  kernels::Stream stream_ = test_streams().compute;
  std::vector<kernels::Token> tokens_;
  Trace trace_;
  long step_ = 0;
};

}  // namespace nanorun
