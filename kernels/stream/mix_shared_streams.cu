// Backward pass of streams that several mixes share.

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/device/ordered_sum.cuh"
#include "kernels/stream/mix.hpp"

namespace nanorun::kernels::cuda {
namespace {

/// Mixes that a launch takes. Of more, the next launch adds to what this one leaves.
constexpr int max_sharing_mixes = 16;

struct SharingMixes {
  SharingMix<bf16> mix[max_sharing_mixes];
  int count;
};

/// Sums over the rows that each mix needs: per_token_i dot_i of both streams, and c_0 dot_0 + c_1 dot_1.
constexpr int shared_sums = 3;
using MixSums = float[max_sharing_mixes][shared_sums];

/// A coefficient, of which a lane has at most one: that of stream lane % 2 in mix lane / 2. So a row's numbers of all
/// coefficients are on their way at once. It is looked up again and again, as registers are short.
class OwnCoefficient {
 public:
  __device__ explicit OwnCoefficient(const SharingMixes& mixes) : mixes_(mixes) {
    if (exists()) common_ = coefficient().scalar.factor();
  }

  __device__ void begin(int row) {
    if (!exists()) return;
    const PerToken<bf16>& numbers = coefficient().per_token;
    by_token_ = numbers.factor(row);
    if (numbers.gradient) before_ = numbers.gradient[numbers.at(row)];
  }
  /// The coefficient of a mix and stream, in every lane of the warp.
  __device__ float of(int mix, int stream) const {
    return __shfl_sync(0xFFFFFFFFu, common_ * by_token_, 2 * mix + stream);
  }
  /// Takes in the dots of a mix over the row.
  __device__ void take(int mix, int row, const float (&dots)[2]) {
    if (mix != own_mix() || !exists()) return;
    const float dot = own_stream() == 0 ? dots[0] : dots[1];
    const PerToken<bf16>& numbers = coefficient().per_token;
    if (numbers.gradient) numbers.gradient[numbers.at(row)] = before_ + common_ * dot;
    sum_ += by_token_ * dot;
  }
  /// The sums over rows; all lanes of a warp call it.
  __device__ void leave(MixSums& sums) const {
    const float whole = group_sum(common_ * sum_, 2);
    sums[own_mix()][own_stream()] = sum_;
    if (own_stream() == 0) sums[own_mix()][2] = whole;
  }

 private:
  static __device__ int own_mix() { return static_cast<int>(threadIdx.x) % warp_size / 2; }
  static __device__ int own_stream() { return threadIdx.x % 2; }
  __device__ const MixCoefficient<bf16>& coefficient() const { return mixes_.mix[own_mix()].coefficient[own_stream()]; }
  __device__ bool exists() const { return own_mix() < mixes_.count && coefficient().present; }

  const SharingMixes& mixes_;
  float common_ = 0;  ///< its scalar's factor; without a coefficient 0
  float by_token_ = 0, before_ = 0, sum_ = 0;
};
static_assert(2 * max_sharing_mixes == warp_size);

/// Adds the sums of all blocks' warps to the scalars.
__device__ void share_scalars(const MixSums (&by_warp)[block_warps], const SharingMixes& mixes,
                              const OrderedSum& total) {
  __shared__ MixSums sums;
  const int count = mixes.count * shared_sums;
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += block_threads) {
    float sum = 0;
    for (int w = 0; w < block_warps; ++w) sum += by_warp[w][i / shared_sums][i % shared_sums];
    total.partial<float>(count)[i] = sum;
  }
  if (!total.finish<float>(count, [&](int i, float sum) { sums[i / shared_sums][i % shared_sums] = sum; })) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int m = 0; m < mixes.count; ++m) {
    const SharingMix<bf16>& mix = mixes.mix[m];
    for (int i = 0; i < 2; ++i) {
      const LearnedScalar<bf16>& s = mix.coefficient[i].scalar;
      if (s.gradient) *s.gradient += s.slope() * sums[m][i];
    }
    add_to_implied(mix.implied, -sums[m][2]);
  }
}

template <int N>
using RowVectors = Vector<bf16, 8>[N];

/// A lane's columns of a row; zeros of a null matrix, and beyond the end.
template <int N>
__device__ void load_row(RowVectors<N>& to, const Mat<const bf16>& x, int row) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int col = 8 * (static_cast<int>(threadIdx.x) % warp_size + warp_size * i);
    to[i] = x && col < x.cols ? load_streaming(x.row(row) + col) : Vector<bf16, 8>();
  }
}

/// Keeps the compiler from converting x before a loop that does so each time, since floats take twice the registers.
__device__ __forceinline__ void keep_packed(Vector<bf16, 8>& x) {
#pragma unroll
  for (std::uint32_t& pair : x.pair) asm volatile("" : "+r"(pair));
}

/// A warp for each row at a time, N vectors of 8 elements for each lane. g of the next mix is loaded while the current
/// one is used.
template <int N>
__global__ void __launch_bounds__(block_threads, N > 3 ? 1 : 2)
    shared_streams_kernel(SharedStream<bf16> first, SharedStream<bf16> second,
                          const __grid_constant__ SharingMixes mixes, OrderedSum total) {
  __shared__ MixSums by_warp[block_warps];
  const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size, cols = first.d.cols;
  begin_after_previous();
  OwnCoefficient own(mixes);
  const SharedStream<bf16>* const streams[] = {&first, &second};
  for (int row = blockIdx.x * block_warps + warp; row < first.d.rows; row += gridDim.x * block_warps) {
    RowVectors<N> x[2], g, next;
    Vector<float, 8> d[2][N];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      load_row<N>(x[s], streams[s]->x, row);
      RowVectors<N> before;
      load_row<N>(before, streams[s]->accumulates ? Mat<const bf16>(streams[s]->d) : Mat<const bf16>(), row);
#pragma unroll
      for (int i = 0; i < N; ++i) d[s][i] = to_floats(before[i]);
    }
    if (mixes.count > 0) load_row<N>(next, mixes.mix[0].g, row);
    own.begin(row);
#pragma unroll 1
    for (int m = 0; m < mixes.count; ++m) {
#pragma unroll
      for (int i = 0; i < N; ++i) g[i] = next[i];
      if (m + 1 < mixes.count) load_row<N>(next, mixes.mix[m + 1].g, row);
      const float c[] = {own.of(m, 0), own.of(m, 1)};
      float dots[2] = {};
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const Vector<float, 8> value = to_floats(g[i]);
        for (auto& vectors : x) keep_packed(vectors[i]);
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          d[s][i] = scaled_sum(value, c[s], d[s][i]);
          dots[s] += dot(value, to_floats(x[s][i]));
        }
      }
#pragma unroll
      for (float& sum : dots) sum = warp_sum(sum);
      own.take(m, row, dots);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int col = 8 * (lane + warp_size * i);
      if (col >= cols) continue;
      store_vector(first.d.row(row) + col, round_to_bf16(d[0][i]));
      if (second.d) store_vector(second.d.row(row) + col, round_to_bf16(d[1][i]));
    }
  }
  own.leave(by_warp[warp]);
  share_scalars(by_warp, mixes, total);
}

}  // namespace

template <class T>
void shared_streams_backward(Stream stream, const std::array<SharedStream<T>, 2>& streams,
                             std::span<const SharingMix<T>> mixes) {
  constexpr const char* op = "shared_streams_backward";
  for (const SharedStream<T>& s : streams) {
    require_vectors(op, s.x);
    require_vectors(op, s.d);
  }
  for (const SharingMix<T>& mix : mixes) require_vectors(op, mix.g);
  auto [first, second] = streams;
  if (first.d.rows == 0) return;
  const int blocks = std::min(row_blocks(first.d.rows), resident_blocks());
  do {
    const std::span<const SharingMix<T>> part = mixes.first(std::min<std::size_t>(mixes.size(), max_sharing_mixes));
    SharingMixes all{};
    all.count = static_cast<int>(part.size());
    std::ranges::copy(part, all.mix);
    for_vectors_per_lane(op, first.d.cols, [&](auto vectors) {
      launch(op, stream, shared_streams_kernel<vectors()>, blocks, block_threads, 0, first, second, all,
             OrderedSum(stream));
    });
    mixes = mixes.subspan(part.size());
    first.accumulates = second.accumulates = true;
  } while (!mixes.empty());
}

template void shared_streams_backward(Stream, const std::array<SharedStream<bf16>, 2>&,
                                      std::span<const SharingMix<bf16>>);

}  // namespace nanorun::kernels::cuda
