#pragma once
// The validation pass, which training and `nanorun eval` share.

#include <functional>
#include <span>

#include "src/comm/comm.hpp"
#include "src/config/config.hpp"
#include "src/data/run_data.hpp"
#include "src/measure/trace.hpp"
#include "src/model/model.hpp"

namespace nanorun {

/// Collective. Mean loss of the sequences at data.validation_places, which are dealt to the ranks in turn; the same
/// number on any count of ranks that computes the same loss of each sequence, as the model is before `step`.
/// `seen` is called with the targets of each of this rank's sequences. Throws Error(data) on all ranks alike
/// where they cannot be read.
double validate(Comm& comm, Trace& trace, Model<Real>& model, const RunData& data, const Config& config, long step,
                const std::function<void(std::span<const Token> targets)>& seen = {});

}  // namespace nanorun
