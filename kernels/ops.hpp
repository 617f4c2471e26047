#pragma once
// The only dispatcher of the compute path: callers write ops::<op>(...), this alias picks the body.

#include "kernels/adam.hpp"
#include "kernels/attention.hpp"
#include "kernels/attention_input.hpp"
#include "kernels/device.hpp"
#include "kernels/embedding.hpp"
#include "kernels/fill.hpp"
#include "kernels/head.hpp"
#include "kernels/matmul.hpp"
#include "kernels/muon.hpp"
#include "kernels/norm.hpp"
#include "kernels/random.hpp"
#include "kernels/residual.hpp"
#include "kernels/types.hpp"
#include "kernels/wire.hpp"

namespace nanorun {
#if NANORUN_CUDA
namespace ops = kernels::cuda;
#else
namespace ops = kernels::portable;
#endif
}  // namespace nanorun
