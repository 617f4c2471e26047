#pragma once
// The work of a step, for MFU and figures of merit.

#include "src/config/config.hpp"
#include "src/model/params.hpp"

namespace nanorun {

/// Floating-point operations of forward and backward pass over one training sequence of a step: 6 for each token and
/// each element of the matrices and the LM head, and those of attention within its windows. Documents do not shorten
/// attention here.
double flops_per_sequence(const Config& config, const ParameterTable& table, long step);

}  // namespace nanorun
