#include "kernels/attention/attention_xsa.hpp"

#include <bit>

#include "kernels/device/ordered_sum.cuh"

namespace nanorun::kernels::cuda {
namespace {

/// A task is a head of a token: D / 8 neighbouring lanes share it, each with 8 columns.
struct Tasks {
  int count, heads, lanes;

  __host__ __device__ int of_block() const { return block_threads / lanes; }
};

/// This thread's part of its task, where the tasks of the block begin at `first`; the task may lie beyond the last.
struct Task {
  int row, head, col;
  bool inside;

  __device__ Task(const Tasks& tasks, int first) {
    int index = first + static_cast<int>(threadIdx.x) / tasks.lanes;
    inside = index < tasks.count;
    if (!inside) index = 0;
    row = index / tasks.heads;
    head = index % tasks.heads;
    col = 8 * (head * tasks.lanes + static_cast<int>(threadIdx.x) % tasks.lanes);
  }
};

/// Sum of a b over a head; all lanes of a warp call it.
__device__ float head_dot(const Vector<float, 8>& a, const Vector<float, 8>& b, const Tasks& tasks) {
  return group_sum(dot(a, b), tasks.lanes);
}

constexpr float smallest_norm = 1e-8f;

/// A thread's columns of y and v, and the numbers of its head. Without alpha v is zero.
struct Head {
  Vector<float, 8> y, v;
  float c, s = 1, own, norm, part;

  /// All lanes of a warp call it, for the sums.
  __device__ Head(const AttentionXsa<bf16>& in, const Task& task, const Tasks& tasks) {
    y = load_floats<8>(in.y.row(task.row) + task.col);
    float alpha = 0;
    if (in.alpha) {
      v = load_floats<8>(in.v.row(task.row) + task.col);
      alpha = in.alpha.row(task.row)[task.head];
    }
    if (in.gate) s = in.gate.row(task.row)[task.head];
    c = tanhf(alpha);
    own = head_dot(v, v, tasks);
    norm = fmaxf(own, smallest_norm);
    part = head_dot(y, v, tasks) / norm;
  }

  __device__ void store_output(bf16* out) const {
    const float taken = c * part;
    Vector<float, 8> x;
#pragma unroll
    for (int k = 0; k < 8; ++k) x.v[k] = s * (y.v[k] - taken * v.v[k]);
    store_rounded(out, x);
  }
};

__global__ void __launch_bounds__(block_threads)
    attention_xsa_kernel(Tasks tasks, Mat<bf16> out, AttentionXsa<bf16> in) {
  begin_after_previous();
  const Task task(tasks, blockIdx.x * tasks.of_block());
  const Head head(in, task, tasks);  // lanes outside take part in the sums
  if (task.inside) head.store_output(out.row(task.row) + task.col);
}

/// d_alpha [heads] += the sums over the threads of that head. The first lane of each task has a sum in x. The block's
/// first task belongs to head first_head.
__device__ void add_to_heads(float* d_alpha, const Tasks& tasks, int first_head, float x, const OrderedSum& total) {
  __shared__ float of_task[block_threads];
  const int count = tasks.of_block(), heads = tasks.heads;
  if (threadIdx.x % tasks.lanes == 0) of_task[threadIdx.x / tasks.lanes] = x;
  __syncthreads();
  for (int h = threadIdx.x; h < heads; h += block_threads) {
    float sum = 0;
    for (int i = (h - first_head + heads) % heads; i < count; i += heads) sum += of_task[i];
    total.partial<float>(heads)[h] = sum;
  }
  total.finish<float>(heads, [=](int h, float sum) { d_alpha[h] += sum; });
}

/// Takes the last tasks first, since the kernel before wrote their d_out last. If the rows of d_alpha coincide, the
/// number of blocks is a multiple of the number of heads, so that a thread has one head.
__global__ void __launch_bounds__(block_threads, 4)
    attention_xsa_backward_kernel(Tasks tasks, AttentionXsaGradients<bf16> d, Mat<bf16> out, Mat<const bf16> d_out,
                                  AttentionXsa<bf16> in, OrderedSum total) {
  begin_after_previous();
  const bool sums = in.alpha && d.d_alpha.ld == 0;
  float by_alpha = 0;
  const int stride = gridDim.x * tasks.of_block();
  const int last = (ceil_div(tasks.count, tasks.of_block()) - 1 - static_cast<int>(blockIdx.x)) * tasks.of_block();
  // All threads of a block make the same number of turns: lanes outside take part in the sums.
  for (int first = last; first >= 0; first -= stride) {
    const Task task(tasks, first);
    const bool leads = task.inside && threadIdx.x % tasks.lanes == 0;
    const float before =
        leads && in.alpha && !sums ? d.d_alpha.row(task.row)[task.head] : 0;  // early, not to wait later
    Vector<float, 8> g = load_floats<8>(d_out.row(task.row) + task.col);
    const Head head(in, task, tasks);
    const float by_value = head_dot(g, head.v, tasks), by_y = in.gate ? head_dot(g, head.y, tasks) : 0;
    if (!task.inside) continue;
    const float c = head.c, s = head.s, part = head.part;
    if (leads) {
      if (in.gate) d.d_gate.row(task.row)[task.head] = by_y - c * part * by_value;
      const float d_alpha = -(1 - c * c) * s * part * by_value;
      if (sums) {
        by_alpha += d_alpha;
      } else if (in.alpha) {
        d.d_alpha.row(task.row)[task.head] = before + d_alpha;
      }
    }
    head.store_output(out.row(task.row) + task.col);
    const float along = -c * s * by_value / head.norm, twice = head.own < smallest_norm ? 0 : 2 * part;
    Vector<float, 8> to_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      g.v[k] *= s;
      to_v.v[k] = along * (head.y.v[k] - twice * head.v.v[k]) - c * part * g.v[k];
      g.v[k] += along * head.v.v[k];
    }
    if (in.alpha) store_rounded(d.d_v.row(task.row) + task.col, to_v);
    store_rounded(d.d_y.row(task.row) + task.col, g);
  }
  if (sums) add_to_heads(d.d_alpha.data, tasks, last % tasks.heads, by_alpha, total);
}

/// Throws std::invalid_argument unless the columns divide into heads of D = 8, 16 ... 256, and rows are whole vectors.
Tasks tasks_of(const char* op, const AttentionXsa<bf16>& in) {
  require_vectors(op, in.y);
  require_vectors(op, in.v);
  const unsigned lanes = in.y.cols / in.heads / 8;
  if (lanes * in.heads * 8 != static_cast<unsigned>(in.y.cols) || !std::has_single_bit(lanes) || lanes > warp_size) {
    throw std::invalid_argument(std::string(op) + ": the head width must be a power of two from 8 to 256");
  }
  return {in.y.rows * in.heads, in.heads, static_cast<int>(lanes)};
}

int backward_blocks(const Tasks& tasks) { return blocks_for(static_cast<std::size_t>(tasks.count) * tasks.lanes); }

/// Thread blocks of a backward pass that sums over tokens.
int summing_blocks(const char* op, const Tasks& tasks) {
  const int most = OrderedSum::max_blocks(op, tasks.heads * sizeof(float), tasks.heads);
  return std::max(std::min(backward_blocks(tasks), most) / tasks.heads, 1) * tasks.heads;
}

}  // namespace

template <class T>
void attention_xsa_forward(Stream stream, Mat<T> out, const AttentionXsa<T>& in) {
  constexpr const char* op = "attention_xsa_forward";
  const Tasks tasks = tasks_of(op, in);
  require_vectors(op, out);
  if (tasks.count == 0) return;
  const int blocks = ceil_div(tasks.count, tasks.of_block());
  launch(op, stream, attention_xsa_kernel, blocks, block_threads, 0, tasks, out, in);
}

template <class T>
void attention_xsa_backward(Stream stream, const AttentionXsaGradients<T>& d, Mat<T> out, Mat<const T> d_out,
                            const AttentionXsa<T>& in) {
  constexpr const char* op = "attention_xsa_backward";
  const Tasks tasks = tasks_of(op, in);
  require_vectors(op, d.d_y);
  require_vectors(op, d.d_v);
  require_vectors(op, out);
  require_vectors(op, d_out);
  if (tasks.count == 0) return;
  const int blocks = in.alpha && d.d_alpha.ld == 0 ? summing_blocks(op, tasks) : backward_blocks(tasks);
  launch(op, stream, attention_xsa_backward_kernel, blocks, block_threads, 0, tasks, d, out, d_out, in,
         OrderedSum(stream));
}

template void attention_xsa_forward(Stream, Mat<bf16>, const AttentionXsa<bf16>&);
template void attention_xsa_backward(Stream, const AttentionXsaGradients<bf16>&, Mat<bf16>, Mat<const bf16>,
                                     const AttentionXsa<bf16>&);

}  // namespace nanorun::kernels::cuda
