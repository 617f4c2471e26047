// Composed heads, forward: a warp's composed probabilities stay in registers while it attends with them for each head.

#include "kernels/attention/attention_composition_tiles.cuh"

namespace nanorun::kernels::cuda {
namespace {

using namespace composition;

__global__ void __launch_bounds__(threads, 3)
    forward_kernel(Mat<bf16> out, Mat<const bf16> y, AttentionComposition<bf16> dc) {
  extern __shared__ __align__(128) std::byte memory[];
  Tiles& s = *reinterpret_cast<Tiles*>(memory);
  begin_after_previous();
  const Queries queries(dc);
  Band a;
  compose(a, s, dc, queries);
  const int first = warp_index() * warp_rows;
#pragma unroll 1
  for (int h = 0; h < dc.in.heads; ++h) {
    load_queries(s, y, dc.in.v, h);
    const float w2[] = {dc.w2.row(queries.token[0])[h], dc.w2.row(queries.token[1])[h]};
    Head sums = {};
#pragma unroll
    for (int key = 0; key < warp_band; key += 16) {
      std::uint32_t operand[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const pair = a + key / 2 + 2 * i;
        operand[i] = pack_bf16(w2[i % 2] * pair[0], w2[i % 2] * pair[1]);
      }
      add_product(sums, operand, shared_address(s.band) + (first + key) * row_bytes);
    }
    add_and_store(s.own + first * row_bytes, sums, 1, out.row(Queries::first_token() + first) + h * head_dim, out.ld);
  }
}

}  // namespace

template <class T>
void attention_composition_forward(Stream stream, Mat<T> out, Mat<const T> y, const AttentionComposition<T>& dc,
                                   Workspace) {
  constexpr const char* op = "attention_composition_forward";
  require_composition(op, dc);
  require_vectors(op, out);
  require_vectors(op, y);
  launch_composition<Tiles>(op, forward_kernel, y.rows, stream, out, y, dc);
}

template void attention_composition_forward(Stream, Mat<bf16>, Mat<const bf16>, const AttentionComposition<bf16>&,
                                            Workspace);

}  // namespace nanorun::kernels::cuda
