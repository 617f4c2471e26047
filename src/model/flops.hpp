#pragma once
// The work of a step, for MFU and figures of merit.

#include "src/config/config.hpp"
#include "src/model/params.hpp"

namespace nanorun {

/// Floating-point operations of the forward and backward pass over one training sequence of a step: 6 per token for
/// each element of the matrices and the LM head, plus those of attention within its windows. Attention counts as if the
/// sequence were one document.
double flops_per_sequence(const Config& config, const ParameterTable& table, long step);

}  // namespace nanorun
