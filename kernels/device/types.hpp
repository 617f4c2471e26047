#pragma once
// Types in the contracts of all ops: scalars, views, streams and workspaces. The arenas of src/ own the memory.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace nanorun::kernels {

/// Token id as token shards store it.
using Token = std::uint16_t;

/// bfloat16, the upper half of an IEEE single. Only CUDA implementations compute with it.
struct bf16 {
  std::uint16_t bits = 0;
};

/// The nearest bf16 as a float, ties to even; NaN stays NaN. Branch-free, so that loops over it vectorise. Device code
/// may call it.
constexpr float round_to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return std::bit_cast<float>((is_nan ? bits | 0x00400000u : rounded) & 0xffff0000u);
}
/// The nearest bf16, ties to even; NaN stays NaN. Device code may call it.
constexpr bf16 to_bf16(float x) {
  return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(round_to_bf16(x)) >> 16)};
}

/// The fp8 formats of fp8.hpp as CUDA implementations store them.
struct e4m3 {
  std::uint8_t bits = 0;
};
struct e5m2 {
  std::uint8_t bits = 0;
};

/// Type of sums, statistics, learned scalars and parameter gradients where activations and weights are T: float for
/// bf16, else T.
template <class T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<bf16> {
  using type = float;
};
template <class T>
using acc_t = typename AccumulatorOf<T>::type;

/// One-dimensional view.
template <class T>
using Vec = std::span<T>;

/// View of a row-major matrix [rows, cols]; rows begin `ld` elements apart. Device code may call constexpr members.
template <class T>
struct Mat {
  T* data = nullptr;
  int rows = 0;
  int cols = 0;
  int ld = 0;

  Mat() = default;
  constexpr Mat(T* data, int rows, int cols) : Mat(data, rows, cols, cols) {}
  constexpr Mat(T* data, int rows, int cols, int ld) : data(data), rows(rows), cols(cols), ld(ld) {}
  template <class U>
  requires(std::is_same_v<T, const U>) constexpr Mat(const Mat<U>& other)
      : Mat(other.data, other.rows, other.cols, other.ld) {}

  constexpr T* row(int i) const { return data + static_cast<std::ptrdiff_t>(i) * ld; }
  constexpr Mat row_block(int first, int count) const { return {row(first), count, cols, ld}; }
  constexpr Mat col_block(int first, int count) const { return {data + first, rows, count, ld}; }
  constexpr std::size_t size() const { return static_cast<std::size_t>(rows) * cols; }
  explicit constexpr operator bool() const { return data != nullptr; }
};

/// n / by, rounded up. n >= 0 and by > 0; n + by - 1 must fit T.
template <class T>
constexpr T ceil_div(T n, std::type_identity_t<T> by) {
  return (n + by - 1) / by;
}

/// What an op does with what its output holds: out = ..., or out += ...
enum class Output { overwrite, accumulate };

constexpr Output accumulate_if(bool condition) { return condition ? Output::accumulate : Output::overwrite; }

/// The factor beta of a GEMM, out = product + beta out.
constexpr float beta_of(Output output) { return output == Output::accumulate ? 1 : 0; }

/// Execution stream of a device; portable implementations ignore it. A default-constructed one is the default stream.
struct Stream {
  void* handle = nullptr;  ///< cudaStream_t
  void* blas = nullptr;    ///< create_blas(): state of the GEMMs, see cublas.hpp
  void* sums = nullptr;    ///< create_sums(): scratch memory of sums over thread blocks, see ordered_sum.hpp
};

/// Scratch memory of an op, aligned to 64 bytes; the op's `<op>_workspace` function gives its size.
using Workspace = std::span<std::byte>;

/// Takes typed arrays from a workspace one after another. On an empty workspace it only counts: take once to learn the
/// size from used(), allocate, and take again.
class WorkspaceAllocator {
 public:
  explicit WorkspaceAllocator(Workspace space) : space_(space) {}

  std::size_t used() const { return used_; }

  template <class T>
  T* take(std::size_t count) {
    const std::size_t at = used_;
    used_ += bytes<T>(count);
    return space_.empty() ? nullptr : reinterpret_cast<T*>(space_.data() + at);
  }

  template <class T>
  static constexpr std::size_t bytes(std::size_t count) {
    return ceil_div(count * sizeof(T), alignment) * alignment;
  }

 private:
  /// Alignment of each array relative to the workspace, in bytes: whole cache lines, and the largest alignment that
  /// cuBLASLt distinguishes. GEMMs on GPUs are slower from other addresses.
  static constexpr std::size_t alignment = 256;
  Workspace space_;
  std::size_t used_ = 0;
};

}  // namespace nanorun::kernels
