#pragma once
// The step between the products of the CUDA head (see head.hpp), row by row: softcap, loss and gradient of the logits.

#include "kernels/types.hpp"

namespace nanorun::kernels::cuda {

/// Most columns of the logits: a row of bf16 lies in a thread block's shared memory.
constexpr int max_vocabulary = 113000;

/// V is a multiple of 8 up to max_vocabulary, for the gradient in e5m2 of 16, as are the rows.
struct Softcap {
  Mat<bf16> z;           ///< [rows, V]
  const Token* targets;  ///< [rows]
  double cap;            ///< c, see HeadOptions
  int* counts;           ///< [softcap_counts(rows)], zero before the first call on these rows
};
std::size_t softcap_counts(int rows);

/// loss [rows]: -log softmax at the target of every row.
void softcap_loss(Stream stream, float* loss, const Softcap& in);

/// The same, and scale times the gradient of the loss replaces z.
void softcap_gradient(Stream stream, float* loss, const Softcap& in, double scale);

/// The same in e5m2, saturating: the gradient [rows, V], which is returned, takes the first half of each row of z, and
/// g_t [V, rows], whose rows begin at whole 16-byte vectors, is its transpose. Thread blocks take rows in the order in
/// which they start, so that softcap_blocks of them may come in several calls on the same counts, one after another or
/// at a time; 0: all.
Mat<e5m2> softcap_gradient_fp8(Stream stream, float* loss, Mat<e5m2> g_t, const Softcap& in, double scale,
                               int blocks = 0);
int softcap_blocks(int rows);

}  // namespace nanorun::kernels::cuda
