#pragma once
// How ops are declared: once, for all implementations.
//
//   NANORUN_DECLARE_OPS({
//     /// out = 2 x
//     /// CUDA: T = bf16.
//     template <class T>
//     void twice(Stream stream, Mat<T> out, Mat<const T> x);
//   })
//
// declares twice() in the namespaces portable and cuda. Another implementation needs a line here, and none where ops
// are declared. Types that ops take stand before the declarations, in nanorun::kernels. What one implementation demands
// beyond the contract follows its name, as above. Functions of one implementation alone are not ops: they have headers
// of their own.

#define NANORUN_DECLARE_OPS(...)            \
  NANORUN_DECLARE_IN(portable, __VA_ARGS__) \
  NANORUN_DECLARE_IN(cuda, __VA_ARGS__)

// Ops with a CUDA body for each tier (tier.hpp).
#define NANORUN_DECLARE_TIERED_OPS(...) NANORUN_DECLARE_OPS(__VA_ARGS__) NANORUN_DECLARE_BODIES(__VA_ARGS__)

// Functions of the CUDA implementation that have one.
#define NANORUN_DECLARE_TIERED(...) NANORUN_DECLARE_IN(cuda, __VA_ARGS__) NANORUN_DECLARE_BODIES(__VA_ARGS__)

// The bodies alone, where their arguments are others than those of the op that calls them.
#define NANORUN_DECLARE_BODIES(...)             \
  NANORUN_DECLARE_IN(cuda::hopper, __VA_ARGS__) \
  NANORUN_DECLARE_IN(cuda::ampere, __VA_ARGS__)

#define NANORUN_DECLARE_IN(implementation, ...) namespace implementation __VA_ARGS__
