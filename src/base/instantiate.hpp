#pragma once
// The types for which templates of src are compiled.

#include "kernels/ops.hpp"

/// NANORUN_INSTANTIATE(class Model); instantiates Model for Real, and in the CPU build for double, in which tests
/// compare gradients with finite differences.
#if NANORUN_CUDA
#define NANORUN_INSTANTIATE(name) template name<Real>
#else
#define NANORUN_INSTANTIATE(name) \
  template name<Real>;            \
  template name<double>
#endif
