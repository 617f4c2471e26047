#pragma once
// Sums over all threads of a grid in a fixed order, so that they are reproducible bit for bit. Each thread block leaves
// its partial sums in the scratch memory of its stream. Consecutive blocks form groups; few blocks form a single one.
// The block of a group that arrives last adds up the group's partial sums. The last of these blocks adds up the sums of
// the groups. Both add in the order of the indices. The size of the grid must depend only on shapes and the number of
// SMs. Kernels that share this memory access it one after another, since each begins with begin_after_previous().

#include "kernels/device/device.hpp"
#include "kernels/device/vec.cuh"

namespace nanorun::kernels::cuda {

/// Blocks for each SM, which run at once, of a kernel whose blocks go through rows and then end with such a sum.
constexpr int resident_per_sm = 2;
inline int resident_blocks() { return resident_per_sm * sm_count(); }

/// Kernel argument. The grid is one-dimensional, its blocks have block_threads. A kernel calls add(), or finish(),
/// once, in all threads.
class OrderedSum {
 public:
  static constexpr std::size_t max_tickets = 2048, ticket_bytes = max_tickets * sizeof(unsigned);
  /// Bytes for the partial sums of all blocks. The sums of groups of blocks take as much at most.
  static constexpr std::size_t partial_bytes = (ordered_sum_bytes - ticket_bytes) / 2;

  static constexpr int max_groups = max_tickets - 1;  ///< of finish_groups()

  /// Throws std::logic_error without create_sums().
  explicit OrderedSum(Stream stream) : memory_(static_cast<std::byte*>(stream.sums)) {
    if (!memory_) throw std::logic_error("a sum over thread blocks on a stream without create_sums");
  }

  /// Blocks that may leave `bytes` of partial sums each, at least `wanted`. Throws std::invalid_argument if even these
  /// do not fit.
  static int max_blocks(const char* op, std::size_t bytes, int wanted = 1) {
    const std::size_t blocks = std::min<std::size_t>(partial_bytes / bytes, most_blocks);
    if (blocks < static_cast<std::size_t>(wanted)) throw std::invalid_argument(std::string(op) + ": too many sums");
    return static_cast<int>(blocks);
  }

  /// *targets[i] += the sum of x[i] over all threads; null targets are not wanted.
  template <class T, int V>
  __device__ void add(const T (&x)[V], T* const (&targets)[V]) const {
    leave(x);
    finish<T>(V, [&](int at, T sum) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (i == at && targets[i]) *targets[i] += sum;
      }
    });
  }

  // leave() and finish() do what add() does in two steps.

  /// Leaves the sums of x over the block.
  template <class T, int V>
  __device__ void leave(const T (&x)[V]) const {
    __shared__ T by_warp[V][block_warps];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const T sum = warp_sum(x[i]);
      if (threadIdx.x % warp_size == 0) by_warp[i][threadIdx.x / warp_size] = sum;
    }
    __syncthreads();
    if (threadIdx.x >= V) return;
    T sum = by_warp[threadIdx.x][0];
#pragma unroll
    for (int w = 1; w < block_warps; ++w) sum += by_warp[threadIdx.x][w];
    partial<T>(V)[threadIdx.x] = sum;
  }

  /// Where this block leaves `count` partial sums. T is float, double or Vector<float, 4>.
  template <class T>
  __device__ T* partial(int count) const {
    return partials<T>() + static_cast<std::size_t>(blockIdx.x) * count;
  }

  /// The last block calls use(i, sum over all blocks) for 0 <= i < count, each i in one thread, and returns true.
  template <class T, class Use>
  __device__ bool finish(int count, const Use& use) const {
    const int blocks = gridDim.x;
    if (blocks <= single_group || blocks * count <= single_group_sums)
      return last_of(0, blocks) && add_rows(partials<T>(), blocks, count, use);
    const int size = __float2int_ru(sqrtf(static_cast<float>(blocks))), group = static_cast<int>(blockIdx.x) / size;
    const int first = group * size, members = min(size, blocks - first), groups = ceil_div(blocks, size);
    if (!last_of(1 + group, members)) return false;
    T* const sums = group_sums<T>() + static_cast<std::size_t>(group) * count;
    add_rows(partials<T>() + static_cast<std::size_t>(first) * count, members, count,
             [=](int i, const T& sum) { sums[i] = sum; });
    return last_of(0, groups) && add_rows(group_sums<T>(), groups, count, use);
  }

  /// As finish(), but each `members` consecutive blocks, of which the grid is a multiple, have sums of their own: the
  /// last block of each group uses those of its group. At most max_groups.
  template <class T, class Use>
  __device__ bool finish_groups(int members, int count, const Use& use) const {
    const int group = static_cast<int>(blockIdx.x) / members;
    return last_of(1 + group, members) &&
           add_rows(partials<T>() + static_cast<std::size_t>(group) * members * count, members, count, use);
  }

 private:
  /// Up to single_group blocks form one group. So do more blocks that leave at most single_group_sums numbers together:
  /// a second level would take longer than it saves.
  static constexpr int single_group = 16, single_group_sums = 4096;
  /// A group has sqrt(blocks) blocks, rounded up. Ticket 0 counts the groups, ticket 1 + i the blocks of group i.
  static constexpr std::size_t most_blocks = 1 << 20;
  static_assert(max_tickets > 1 + 1024);

  template <class T>
  __device__ T* partials() const {
    return reinterpret_cast<T*>(memory_ + ticket_bytes);
  }
  template <class T>
  __device__ T* group_sums() const {
    return reinterpret_cast<T*>(memory_ + ticket_bytes + partial_bytes);
  }

  /// Whether this is the last of `members` blocks to call this. It then sees what the others wrote before, and the
  /// ticket is ready for the next kernel.
  __device__ bool last_of(int ticket, int members) const {
    __syncthreads();
    if (members == 1) return true;
    bool last = false;
    if (threadIdx.x == 0) {
      const unsigned most = members - 1;
      __threadfence();
      last = atomicInc(reinterpret_cast<unsigned*>(memory_) + ticket, most) == most;
      __threadfence();
    }
    return __syncthreads_or(last);
  }

  // From L2, where other blocks' writes are.
  static __device__ float load(const float* x) { return __ldcg(x); }
  static __device__ double load(const double* x) { return __ldcg(x); }
  static __device__ Vector<float, 4> load(const Vector<float, 4>* x) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(x));
    return {{v.x, v.y, v.z, v.w}};
  }
  template <class T>
  static __device__ void accumulate(T& sum, const T& x) {
    sum += x;
  }
  static __device__ void accumulate(Vector<float, 4>& sum, const Vector<float, 4>& x) {
#pragma unroll
    for (int k = 0; k < 4; ++k) sum.v[k] += x.v[k];
  }

  /// The sum of rows [first, first + step ...) of x [rows, count] at column i.
  template <class T>
  static __device__ T add_column(const T* x, int rows, int count, int i, int first, int step) {
    // Loads on their way at a time: where they are not vectors, few, since they take registers from the whole kernel.
    constexpr int batch = sizeof(T) == 16 ? 16 : 4;
    T sum{};
    for (int base = first; base < rows; base += batch * step) {
      T parts[batch];
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        const int row = base + k * step;
        if (row < rows) parts[k] = load(x + static_cast<std::size_t>(row) * count + i);
      }
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        if (base + k * step < rows) accumulate(sum, parts[k]);
      }
    }
    return sum;
  }

  /// An element for each thread of the block.
  template <class T>
  static __device__ T* shared_sums() {
    __shared__ T sums[block_threads];
    return sums;
  }

  /// use(i, sum over the rows of x[row, i]) for 0 <= i < count, where x is [rows, count]. Where the columns are fewer
  /// than half the threads, several threads share the rows of one. Returns true.
  template <class T, class Use>
  static __device__ bool add_rows(const T* x, int rows, int count, const Use& use) {
    T* const of_thread = shared_sums<T>();
    const int columns = min(count, block_threads), sharing = min(block_threads / columns, rows);
    const int column = threadIdx.x % columns, share = threadIdx.x / columns;
    for (int i = column; i - column < count; i += columns) {
      T sum{};
      if (i < count && share < sharing) sum = add_column(x, rows, count, i, share, sharing);
      if (sharing > 1) {  // then this is the only turn
        of_thread[threadIdx.x] = sum;
        __syncthreads();
        for (int k = 1; share == 0 && k < sharing; ++k) accumulate(sum, of_thread[column + k * columns]);
      }
      if (i < count && share == 0) use(i, sum);
    }
    return true;
  }

  std::byte* memory_;
};

/// Base of an elementwise body that adds a sum of squares to *squares, in a fixed order; or member of one that has
/// several.
struct SumOfSquares {
  OrderedSum total;
  double* squares;
  double sum = 0;

  __device__ void add_square(float x) { sum += static_cast<double>(x) * x; }
  __device__ void finish() const { total.add({sum}, {squares}); }
};

}  // namespace nanorun::kernels::cuda
