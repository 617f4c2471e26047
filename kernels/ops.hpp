#pragma once
// Dispatcher: callers write ops::<op>(...), which picks the CUDA or the portable implementation.

#include "kernels/attention/attention.hpp"
#include "kernels/attention/attention_composition.hpp"
#include "kernels/attention/attention_gate.hpp"
#include "kernels/attention/attention_input.hpp"
#include "kernels/attention/attention_projection.hpp"
#include "kernels/attention/attention_xsa.hpp"
#include "kernels/device/device.hpp"
#include "kernels/device/fill.hpp"
#include "kernels/device/kernel_fault.hpp"
#include "kernels/device/magnitude.hpp"
#include "kernels/device/random.hpp"
#include "kernels/device/types.hpp"
#include "kernels/device/wire.hpp"
#include "kernels/linear/bias.hpp"
#include "kernels/linear/fp8_linear.hpp"
#include "kernels/linear/matmul.hpp"
#include "kernels/lm_head/candidate_rows.hpp"
#include "kernels/lm_head/lm_head.hpp"
#include "kernels/optimizer/adam.hpp"
#include "kernels/optimizer/adam_rows.hpp"
#include "kernels/optimizer/average.hpp"
#include "kernels/optimizer/clip.hpp"
#include "kernels/optimizer/muon.hpp"
#include "kernels/optimizer/muon_scalars.hpp"
#include "kernels/optimizer/outer_nesterov.hpp"
#include "kernels/stream/coefficient_net.hpp"
#include "kernels/stream/embedding.hpp"
#include "kernels/stream/gain.hpp"
#include "kernels/stream/mix.hpp"
#include "kernels/stream/norm.hpp"
#include "kernels/stream/sign_rows.hpp"
#include "kernels/stream/smear.hpp"

namespace nanorun {

/// The types that ops share, and the ops of this build's implementation. Real: type of a training run's activations and
/// of the weights that GEMMs read. Sums, statistics, master weights and gradients are acc_t<Real>.
#if NANORUN_CUDA
namespace ops {
using namespace kernels;
using namespace kernels::cuda;
}  // namespace ops
using Real = kernels::bf16;
#else
namespace ops {
using namespace kernels;
using namespace kernels::portable;
}  // namespace ops
using Real = float;
#endif

}  // namespace nanorun
