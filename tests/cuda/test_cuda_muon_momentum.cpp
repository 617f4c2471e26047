#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/device/device.hpp"
#include "kernels/device/fill.hpp"
#include "kernels/optimizer/muon_portable.hpp"
#include "kernels/optimizer/muon_stages.hpp"
#include "tests/cuda/blas_stream.hpp"
#include "tests/cuda/muon_matrices.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::MuonMatrices;
using test::Shapes;

test::Vector<float> values(std::size_t n, unsigned seed) { return test::convert<float>(test::random_values(n, seed)); }

/// |got - want| <= absolute + relative |want| for every element.
void expect_match(const char* name, const test::Vector<float>& got, const test::Vector<float>& want, double absolute,
                  double relative) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::abs(static_cast<double>(got[i]) - want[i]), absolute + relative * std::abs(want[i]))
        << name << "[" << i << "]: " << got[i] << " instead of " << want[i];
  }
}

constexpr MuonOptions options_of(double momentum, double gradient_scale) {
  return {.iteration = polar_express_iteration, .momentum = momentum, .gradient_scale = gradient_scale};
}

/// How momenta are kept: in fp32, as bf16 values in fp32, or in bf16.
enum class Kept { fp32, rounded, narrow };

/// Moves the momenta of the batches to `narrow`, one after another.
void use_narrow(std::vector<MuonBatch<bf16>>& batches, const test::DeviceVector<bf16>& narrow,
                Momentum<bf16> MuonBatch<bf16>::*momentum) {
  std::size_t at = 0;
  for (MuonBatch<bf16>& batch : batches) {
    batch.*momentum = {.narrow = narrow.data() + at};
    at += batch.size();
  }
}

/// Likewise the gradients.
void use_narrow_gradients(std::vector<MuonBatch<bf16>>& batches, const test::DeviceVector<bf16>& narrow) {
  std::size_t at = 0;
  for (MuonBatch<bf16>& batch : batches) {
    batch.gradients = nullptr;
    batch.narrow_gradients = narrow.data() + at;
    at += batch.size();
  }
}

/// Sets the rounded values, and returns them.
test::Vector<float> set_narrow(const test::DeviceVector<bf16>& to, const test::Vector<float>& values) {
  test::Vector<bf16> rounded;
  test::Vector<float> wide;
  for (const float value : values) {
    rounded.push_back(to_bf16(value));
    wide.push_back(round_to_bf16(value));
  }
  test::cuda_check(cudaMemcpy(to.data(), rounded.data(), rounded.size() * sizeof(bf16), cudaMemcpyHostToDevice));
  return wide;
}

test::Vector<float> widened(const test::Vector<bf16>& x) {
  test::Vector<float> wide;
  for (const bf16 value : x) wide.push_back(test::to_float(value));
  return wide;
}

enum class Gradients { fp32, narrow };

void compare_momentum(const Shapes& shapes, test::Rule rule = test::Rule::muon, Kept kept = Kept::fp32,
                      Gradients gradients = Gradients::fp32) {
  SCOPED_TRACE(name_of(shapes));
  MuonMatrices matrices(shapes, rule);
  const test::SumStream stream;
  const test::DeviceSum squares;
  test::Vector<float> g = values(size_of(shapes), 1), buf = values(size_of(shapes), 2),
                      slow = values(size_of(shapes), 3);
  matrices.set(matrices.gradients, g);
  matrices.set(matrices.momentum, buf);
  matrices.set(matrices.slow_momentum, slow);
  test::DeviceVector<bf16> narrow(size_of(shapes)), narrow_slow(size_of(shapes)), narrow_gradients(size_of(shapes));
  if (gradients == Gradients::narrow) {
    use_narrow_gradients(matrices.batches, narrow_gradients);
    g = set_narrow(narrow_gradients, g);
  }
  if (kept != Kept::fp32) {
    for (MuonBatch<bf16>& batch : matrices.batches) batch.round_momenta = true;
  }
  if (kept == Kept::narrow) {
    use_narrow(matrices.batches, narrow, &MuonBatch<bf16>::momentum);
    if (rule == test::Rule::two_momenta) use_narrow(matrices.batches, narrow_slow, &MuonBatch<bf16>::slow_momentum);
    buf = set_narrow(narrow, buf);
    slow = set_narrow(narrow_slow, slow);
  }
  test::Vector<double> host_squares(1);
  MuonOptions options = options_of(0.95, 1.0 / 3);
  if (rule == test::Rule::two_momenta) {
    options.fast_momentum = 0.85;
    options.slow_momentum = 0.98;
    options.momentum_mix = 0.4385;
    portable::mixed_momentum<float>({}, g, buf, slow, options, host_squares.data());
  } else {
    portable::nesterov_momentum<float>({}, g, buf, 0.95, 1.0 / 3, host_squares.data());
  }
  muon_momentum(stream, matrices.batches, matrices.wide, matrices.squares_of_x.data(), options, squares.data());
  if (kept != Kept::fp32) {
    portable::round_as_bf16<float>({}, buf);
    if (rule == test::Rule::two_momenta) portable::round_as_bf16<float>({}, slow);
  }
  // A sum near the middle of two values of bf16 may be rounded to either.
  const double relative = kept == Kept::fp32 ? 1e-6 : 0x1p-7;
  const bool is_narrow = kept == Kept::narrow;
  expect_match("momentum", is_narrow ? widened(narrow.host()) : matrices.momentum.host(), buf, 1e-6, relative);
  expect_match("slow momentum", is_narrow ? widened(narrow_slow.host()) : matrices.slow_momentum.host(), slow, 1e-6,
               relative);
  if (kept == Kept::rounded) {
    for (const float value : matrices.momentum.host()) ASSERT_EQ(value, round_to_bf16(value));
  }
  expect_match("x", matrices.host_x(), test::widened(g, shapes), 1e-6, 0x1p-8);
  EXPECT_NEAR(squares.added(), host_squares[0], 1e-6 * host_squares[0]);
  const test::Vector<float> parts = matrices.squares_of_x.host();
  const std::size_t matrix_size = matrices.wide.matrix_size(), part_count = parts.size() / matrices.wide.count;
  for (int i = 0; i < matrices.wide.count; ++i) {
    double sum = 0, want = 0;
    for (std::size_t j = 0; j < part_count; ++j) sum += parts[i * part_count + j];
    for (std::size_t j = 0; j < matrix_size; ++j) want += std::pow(static_cast<double>(g[i * matrix_size + j]), 2);
    ASSERT_NEAR(sum, want, 1e-6 * want) << "matrix " << i;
  }
}

void expect_narrowed(const test::Vector<bf16>& copy, const test::Vector<float>& weights,
                     const std::vector<MuonBatch<bf16>>& batches) {
  std::size_t i = 0, inexact = 0;
  for (const MuonBatch<bf16>& batch : batches) {
    for (const std::size_t end = i + batch.size(); i < end; ++i) {
      const bf16 truncated = test::from_float<bf16>(weights[i], /*truncates=*/true), rounded = to_bf16(weights[i]);
      ASSERT_EQ(copy[i].bits, batch.truncates ? truncated.bits : rounded.bits) << i;
      inexact += truncated.bits != rounded.bits;
    }
  }
  EXPECT_GT(inexact, copy.size() / 4) << "truncated and rounded weights must differ";
}

/// Each batch with its own rates; every other one has its copy truncated. X with scales, or without.
void compare_apply(const Shapes& shapes, double decay, bool scaled = false) {
  SCOPED_TRACE(name_of(shapes) + (scaled ? "scaled" : ""));
  MuonMatrices matrices(shapes);
  const test::SumStream stream;
  const test::DeviceSum squares;
  test::Vector<float> w = values(size_of(shapes), 1), x = values(size_of(shapes), 2);
  for (float& value : x) value = round_to_bf16(value);
  matrices.set(matrices.weights, w);
  const test::DeviceVector<float> scales(test::scales_of(matrices.wide.count));
  const test::Vector<float> stored = scaled ? test::divide_by_scales(x, matrices.wide.matrix_size(), scales.host()) : x;
  matrices.set_x(test::widened(stored, shapes));
  test::Vector<double> host_squares(1);
  std::size_t at = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    MuonBatch<bf16>& batch = matrices.batches[i];
    batch.lr = 0.03 / static_cast<double>(1 + i);
    batch.decay = decay / static_cast<double>(1 + i % 3);
    batch.cautious = i % 3 != 1;
    batch.truncates = i % 2 == static_cast<std::size_t>(decay > 0);
    const Vec<float> own_w(w.data() + at, batch.size()), own_x(x.data() + at, batch.size());
    if (decay > 0) {
      portable::add_scaled_with_decay<float>({}, own_w, own_x, batch.lr, batch.decay, host_squares.data(),
                                             batch.cautious);
    } else {
      portable::add_scaled<float>({}, own_w, own_x, -batch.lr, host_squares.data());
    }
    at += batch.size();
  }
  const test::DeviceVector<std::byte> scratch(muon_apply_workspace(matrices.wide.count));  // begins as NaN
  muon_apply(stream, matrices.batches, matrices.wide, scaled ? scales.data() : nullptr, 0, squares.data(),
             {scratch.data(), scratch.size()});
  const test::Vector<float> got = matrices.weights.host();
  expect_match("weights", got, w, 1e-6, 1e-6);
  expect_narrowed(matrices.copy.host(), got, matrices.batches);
  EXPECT_NEAR(squares.added(), host_squares[0], 1e-6 * host_squares[0]);
}

/// Square, wide and tall; whole tiles and others; one part and several; more batches than a launch takes.
const Shapes all_shapes[] = {
    {{1, 8, 8}},      {{3, 64, 64}},   {{2, 16, 40}, {3, 40, 16}}, {{3, 200, 136}, {0, 136, 200}, {1, 136, 200}},
    {{12, 256, 768}}, {{3, 768, 768}}, Shapes(70, {2, 24, 16})};

TEST(CudaMuonMomentum, MatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Shapes& shapes : all_shapes) {
    compare_momentum(shapes);
    compare_momentum(shapes, test::Rule::two_momenta);
  }
}

TEST(CudaMuonMomentum, InBf16MatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Shapes& shapes : all_shapes) {
    for (const test::Rule rule : {test::Rule::muon, test::Rule::two_momenta}) {
      compare_momentum(shapes, rule, Kept::rounded);
      compare_momentum(shapes, rule, Kept::narrow);
    }
  }
}

TEST(CudaMuonMomentum, OfGradientsInBf16MatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Shapes& shapes : all_shapes) {
    for (const test::Rule rule : {test::Rule::muon, test::Rule::two_momenta}) {
      compare_momentum(shapes, rule, Kept::fp32, Gradients::narrow);
      compare_momentum(shapes, rule, Kept::narrow, Gradients::narrow);
    }
  }
}

TEST(CudaMuonApply, MatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const Shapes& shapes : all_shapes) {
    for (const double decay : {0.0, 0.25}) {
      compare_apply(shapes, decay);
      compare_apply(shapes, decay, true);
    }
  }
}

TEST(CudaMuonStages, RecipeSizeMatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  const Shapes shapes{{12, 3072, 768}, {12, 768, 3072}};
  compare_momentum(shapes);
  compare_apply(shapes, 0.25);
}

TEST(CudaMuonStages, SumsAreReproducible) {
  SKIP_WITHOUT_DEVICE();
  for (const Shapes& shapes : {Shapes{{1, 64, 64}}, Shapes{{12, 3072, 768}}}) {  // one thread block, and thousands
    test::expect_same_bits([&](Stream stream) {
      const MuonMatrices matrices(shapes);
      const test::DeviceSum of_gradients, of_weights;
      const test::Vector<float> x = values(size_of(shapes), 1);
      matrices.set(matrices.gradients, x);
      matrices.set(matrices.weights, x);
      muon_momentum(stream, matrices.batches, matrices.wide, matrices.squares_of_x.data(), options_of(0.95, 1.0 / 3),
                    of_gradients.data());
      const test::DeviceVector<std::byte> scratch(muon_apply_workspace(matrices.wide.count));  // begins as NaN
      muon_apply(stream, matrices.batches, matrices.wide, nullptr, 0, of_weights.data(),
                 {scratch.data(), scratch.size()});
      return test::Vector<double>{of_gradients.added(), of_weights.added()};
    });
  }
}

TEST(CudaMuonStages, NonFiniteGradientOrWeightIsDetected) {
  SKIP_WITHOUT_DEVICE();
  constexpr float largest = std::numeric_limits<float>::max(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Shapes& shapes : {Shapes{{3, 136, 200}}, Shapes{{3, 200, 136}}}) {
    for (const float value : {largest, nan}) {
      MuonMatrices matrices(shapes);
      test::Vector<float> numbers(size_of(shapes), 1);
      numbers.back() = value;
      matrices.set(matrices.gradients, numbers);
      matrices.set_x(test::Vector<float>(numbers.size(), 1));
      const test::SumStream stream;
      const test::DeviceSum of_gradients, of_weights;
      muon_momentum(stream, matrices.batches, matrices.wide, matrices.squares_of_x.data(), options_of(0.9, 2),
                    of_gradients.data());
      EXPECT_FALSE(std::isfinite(of_gradients.added()));
      matrices.set_x(test::widened(numbers, shapes));
      for (MuonBatch<bf16>& batch : matrices.batches) {
        batch.lr = 1e10;
        batch.decay = 0.1;
      }
      const test::DeviceVector<std::byte> scratch(muon_apply_workspace(matrices.wide.count));
      muon_apply(stream, matrices.batches, matrices.wide, nullptr, 0, of_weights.data(),
                 {scratch.data(), scratch.size()});
      EXPECT_FALSE(std::isfinite(of_weights.added()));
    }
  }
}

/// The whole update, of which the iteration's roundings are most of the error.
void compare_update(const Shapes& shapes, bool normuon, double error) {
  SCOPED_TRACE(name_of(shapes));
  const test::BlasStream stream;
  MuonMatrices matrices(shapes, normuon ? test::Rule::normuon : test::Rule::muon);
  test::Vector<float> g = values(size_of(shapes), 1), buf = values(size_of(shapes), 2), w(size_of(shapes));
  test::Vector<float> q(matrices.second_moment.size());
  matrices.set(matrices.gradients, g);
  matrices.set(matrices.momentum, buf);
  const MuonOptions options{
      .iteration = polar_express_iteration, .momentum = 0.95, .gradient_scale = 2, .normuon_beta = 0.9};
  test::Vector<double> host_squares(2);
  std::vector<MuonBatch<float>> batches;
  for (MuonBatch<bf16>& b : matrices.batches) {
    b.lr = 0.01 * static_cast<double>(1 + batches.size());
    const auto at = [&](const float* device, const float* first, test::Vector<float>& host) {
      return host.data() + (device - first);
    };
    float* const weights = at(b.weights, matrices.weights.data(), w);
    batches.push_back({b.count,
                       b.rows,
                       b.cols,
                       weights,
                       at(b.gradients, matrices.gradients.data(), g),
                       {at(b.momentum.wide, matrices.momentum.data(), buf)},
                       weights,
                       normuon ? at(b.second_moment, matrices.second_moment.data(), q) : nullptr,
                       b.lr});
  }
  test::Vector<std::byte> memory(portable::muon_workspace<float>(batches) + 64);
  const std::size_t skip = 64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
  portable::muon_update<float>({}, batches, options, {host_squares.data(), host_squares.data() + 1},
                               Workspace(memory).subspan(skip));
  const test::DeviceVector<std::byte> scratch(muon_workspace<bf16>(matrices.batches));  // begins as NaN
  const test::DeviceSum squares;
  muon_update<bf16>(stream, matrices.batches, options, {squares.data(), squares.data() + 1},
                    {scratch.data(), scratch.size()});
  EXPECT_LT(test::relative_error(matrices.weights.host(), w), error);
  EXPECT_LT(test::relative_error(matrices.momentum.host(), buf), 1e-6);
  EXPECT_LT(test::relative_error(matrices.second_moment.host(), q), error);
  EXPECT_NEAR(squares.added(), host_squares[0], 1e-6 * host_squares[0]);
  EXPECT_NEAR(squares.added(1), host_squares[1], error * host_squares[1]);
}

TEST(CudaMuonUpdate, MatchesPortable) {
  SKIP_WITHOUT_DEVICE();
  for (const bool normuon : {false, true}) {
    compare_update({{2, 256, 384}, {3, 384, 256}, {1, 256, 384}}, normuon, 0.03);
    compare_update({{5, 256, 256}}, normuon, 0.03);
    compare_update({{1, 512, 1024}, {1, 1024, 512}}, normuon, 0.01);  // the Gram iteration
  }
}

TEST(CudaMuonUpdate, RefusesOddSidesDifferentShapesAndUnalignedTensors) {
  SKIP_WITHOUT_DEVICE();
  const auto refuses = [](const std::vector<MuonBatch<bf16>>& batches) {
    EXPECT_THROW(muon_workspace<bf16>(batches), std::invalid_argument);
  };
  refuses({{1, 7, 8}});
  refuses({{1, 8, 12}});
  refuses({{1, 8, 16}, {2, 8, 8}});
  alignas(16) float memory[8];
  refuses({{1, 8, 8, memory + 1}});
}

}  // namespace
}  // namespace nanorun::kernels::cuda
