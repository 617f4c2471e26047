#pragma once
// Matrices of several batches as Muon's CUDA implementation updates them.

#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/optimizer/muon_stages.hpp"
#include "tests/support/bf16.hpp"
#include "tests/support/cuda_memory.hpp"
#include "tests/support/fp16.hpp"

namespace nanorun::kernels::test {

struct Shape {
  int count, rows, cols;
};
using Shapes = std::vector<Shape>;

inline std::string name_of(const Shapes& shapes) {
  std::string name;
  for (const Shape& s : shapes) {
    name += std::to_string(s.count) + "x" + std::to_string(s.rows) + "x" + std::to_string(s.cols) + " ";
  }
  return name;
}

inline std::size_t size_of(const Shapes& shapes) {
  std::size_t size = 0;
  for (const Shape& s : shapes) size += static_cast<std::size_t>(s.count) * s.rows * s.cols;
  return size;
}

/// Pieces that follow each other from `data` on.
inline std::vector<MatrixBatch<float>> batches_of(float* data, const Shapes& shapes) {
  std::vector<MatrixBatch<float>> batches;
  for (const Shape& s : shapes) {
    batches.push_back({data, s.count, s.rows, s.cols});
    data += batches.back().size();
  }
  return batches;
}

inline void turn(float* to, const float* from, int rows, int cols) {
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < cols; ++c) to[c * rows + r] = from[r * cols + c];
}

enum class Direction { there, back };

/// The matrices of all pieces, tall ones transposed; and back.
inline Vector<float> widened(const Vector<float>& x, const Shapes& shapes, Direction direction = Direction::there) {
  const bool back = direction == Direction::back;
  Vector<float> wide = x;
  std::size_t at = 0;
  for (const auto& [count, rows, cols] : shapes) {
    for (int i = 0; i < count; ++i, at += static_cast<std::size_t>(rows) * cols) {
      if (rows > cols) turn(wide.data() + at, x.data() + at, back ? cols : rows, back ? rows : cols);
    }
  }
  return wide;
}

/// Scales of matrices, from 1e-6 to 1e6 in turns.
inline Vector<float> scales_of(int count) {
  Vector<float> scales;
  for (int i = 0; i < count; ++i) scales.push_back(static_cast<float>(std::pow(10, i * 5 % 13 - 6)));
  return scales;
}
/// What is stored in bf16 of matrices X of `size` elements beside their scales. X becomes what that stands for.
inline Vector<float> divide_by_scales(Vector<float>& x, std::size_t size, const Vector<float>& scales) {
  Vector<float> stored;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float scale = scales[i / size];
    stored.push_back(kernels::round_to_bf16(x[i] / scale));
    x[i] = scale * stored.back();
  }
  return stored;
}

enum class Rule { muon, normuon, two_momenta };

/// Matrices of several batches, with their state, in device memory.
struct MuonMatrices {
  DeviceVector<float> weights, gradients, momentum, slow_momentum;
  DeviceVector<bf16> copy, x;
  DeviceVector<float> second_moment, squares_of_x;
  std::vector<MuonBatch<bf16>> batches;
  MatrixBatch<bf16> wide;

  explicit MuonMatrices(const Shapes& shapes, Rule rule = Rule::muon)
      : MuonMatrices(shapes, rule, size_of(shapes), shape_of(shapes)) {}

  void set(const DeviceVector<float>& tensor, const Vector<float>& values) const {
    cuda_check(cudaMemcpy(tensor.data(), values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
  }
  /// X as T stores it.
  template <class T>
  MatrixBatch<T> stored() const {
    return {reinterpret_cast<T*>(x.data()), wide.count, wide.rows, wide.cols};
  }
  template <class T = bf16>
  void set_x(const Vector<float>& values) const {
    Vector<T> rounded;
    for (const float value : values) {
      if constexpr (std::is_same_v<T, bf16>) rounded.push_back(to_bf16(value));
      if constexpr (std::is_same_v<T, fp16>) rounded.push_back(to_fp16(cuda::stored_factor<fp16> * value));
    }
    cuda_check(cudaMemcpy(x.data(), rounded.data(), rounded.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  Vector<float> host_x() const { return host_factors<bf16>({{x.data(), wide.count, wide.rows, wide.cols}}); }
  /// X of the factors, which T stores.
  template <class T>
  static Vector<float> host_factors(const cuda::PolarFactors& factors) {
    const MatrixBatch<bf16>& stored = factors.x;
    Vector<bf16> bits(stored.size());
    Vector<float> scales(stored.count, 1), values;
    cuda_check(cudaDeviceSynchronize());
    cuda_check(cudaMemcpy(bits.data(), stored.data, bits.size() * sizeof(bf16), cudaMemcpyDeviceToHost));
    if (factors.scales) {
      cuda_check(cudaMemcpy(scales.data(), factors.scales, scales.size() * sizeof(float), cudaMemcpyDeviceToHost));
    }
    for (std::size_t i = 0; i < bits.size(); ++i) {
      values.push_back(to_float(T{bits[i].bits}) * scales[i / stored.matrix_size()] / cuda::stored_factor<T>);
    }
    return values;
  }

 private:
  static MatrixBatch<bf16> shape_of(const Shapes& shapes) {
    std::vector<MuonBatch<bf16>> batches;
    for (const Shape& s : shapes) batches.push_back({s.count, s.rows, s.cols});
    return cuda::wide_matrices(batches);
  }
  MuonMatrices(const Shapes& shapes, Rule rule, std::size_t size, MatrixBatch<bf16> shape)
      : weights(Vector<float>(size)),
        gradients(Vector<float>(size)),
        momentum(Vector<float>(size)),
        slow_momentum(Vector<float>(size)),
        copy(size),
        x(size),
        second_moment(Vector<float>(static_cast<std::size_t>(shape.count) * shape.cols)),
        squares_of_x(static_cast<std::size_t>(shape.count) * cuda::matrix_parts(shape.rows, shape.cols)),
        wide(shape) {
    wide.data = x.data();
    std::size_t at = 0, neuron = 0;
    for (const auto& [count, rows, cols] : shapes) {
      batches.push_back({count,
                         rows,
                         cols,
                         weights.data() + at,
                         gradients.data() + at,
                         {momentum.data() + at},
                         copy.data() + at,
                         rule == Rule::normuon ? second_moment.data() + neuron : nullptr});
      if (rule == Rule::two_momenta) batches.back().slow_momentum.wide = slow_momentum.data() + at;
      at += batches.back().size();
      neuron += static_cast<std::size_t>(count) * normuon_neurons(rows, cols);
    }
  }
};

}  // namespace nanorun::kernels::test
