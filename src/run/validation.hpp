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

/// Collective. Mean loss of the validation sequences with the model before `step`. The ranks share the sequences; the
/// losses are summed in the order of the sequences, whatever the number of ranks. `seen` is called with each of this
/// rank's sequences, and `largest`, if given, raised to their magnitudes. Throws Error(data) on all ranks alike where a
/// sequence cannot be read.
double validate(Comm& comm, Trace& trace, Model<Real>& model, const RunData& data, const Config& config, long step,
                const std::function<void(const Sequence& sequence)>& seen = {}, LmHeadMagnitudes* largest = nullptr);

}  // namespace nanorun
