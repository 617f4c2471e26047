#pragma once
// Dispatcher: callers write ops::<op>(...), and this alias picks the CUDA or the portable implementation.

#include "kernels/adam.hpp"
#include "kernels/adam_rows.hpp"
#include "kernels/attention.hpp"
#include "kernels/attention_input.hpp"
#include "kernels/attention_projection.hpp"
#include "kernels/coefficient_net.hpp"
#include "kernels/device.hpp"
#include "kernels/embedding.hpp"
#include "kernels/fill.hpp"
#include "kernels/head.hpp"
#include "kernels/head_composition.hpp"
#include "kernels/head_output.hpp"
#include "kernels/head_scale.hpp"
#include "kernels/matmul.hpp"
#include "kernels/mix.hpp"
#include "kernels/mlp_fp8.hpp"
#include "kernels/muon.hpp"
#include "kernels/norm.hpp"
#include "kernels/random.hpp"
#include "kernels/sign_rows.hpp"
#include "kernels/smear.hpp"
#include "kernels/types.hpp"
#include "kernels/wire.hpp"

namespace nanorun {
/// Real: type of a training run's activations and of the weights that GEMMs read. Sums, statistics, master weights and
/// gradients are acc_t<Real>.
#if NANORUN_CUDA
namespace ops = kernels::cuda;
using Real = kernels::bf16;
#else
namespace ops = kernels::portable;
using Real = float;
#endif
}  // namespace nanorun
