#pragma once
// Adam with bias correction and without weight decay (Kingma and Ba 2015, arXiv:1412.6980).
//   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g²
//   w -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps),  t = 1 for the first update
// Shapes: w, m, v, g [n].

#include "kernels/types.hpp"

namespace nanorun::kernels {

struct AdamOptions {
  double lr = 0;
  double beta1 = 0.8;
  double beta2 = 0.95;
  double eps = 1e-10;
  long t = 1;
};

namespace portable {

template <class T>
void adam_update(Stream stream, Vec<T> w, Vec<T> m, Vec<T> v, Vec<const T> g, const AdamOptions& options);

}  // namespace portable

namespace cuda {

/// T = float
template <class T>
void adam_update(Stream stream, Vec<T> w, Vec<T> m, Vec<T> v, Vec<const T> g, const AdamOptions& options);

/// The same, and copy [n] = w rounded to bf16, for the products that read it.
void adam_update_with_copy(Stream stream, Vec<float> w, Vec<bf16> copy, Vec<float> m, Vec<float> v, Vec<const float> g,
                           const AdamOptions& options);

}  // namespace cuda
}  // namespace nanorun::kernels
