#include "src/model/flops.hpp"

#include <algorithm>

#include "src/config/schedule.hpp"

namespace nanorun {

Flops::Flops(const Config& config, const ParameterTable& table)
    : config_(config), blocks_(block_plans(config.model, Mode::training)) {
  for (const Parameter& p : table.parameters()) {
    if (p.group == Group::matrix) weights_ += static_cast<double>(p.live_size());
  }
}

double Flops::per_sequence_6nd(long step) const {
  const int candidates = candidate_draw(config_, step, 0).count;
  const double columns = candidates == 0 ? padded_vocabulary(config_.model) : candidates;
  return 6 * (weights_ + columns * config_.model.width) * length_at(config_, step);
}

double Flops::per_sequence(long step) const {
  const double tokens = length_at(config_, step);
  const double sequence = config_.data.packing == Packing::rows ? config_.data.row_length : tokens;
  const Windows windows = windows_at(config_, step);
  double attention = 0;
  for (const BlockPlan& plan : blocks_) {
    if (!plan.attends) continue;
    // Paired heads are half as many, of twice the rows.
    const int pairing = plan.pairs_heads ? 2 : 1;
    const double rows = pairing * sequence;
    const double reach =
        std::min<double>(rows, is_long_layer(config_.window, plan.layer) ? windows.long_tokens : windows.short_tokens);
    const double pairs = reach * (rows - reach / 2) * (tokens / sequence);
    // 2 GEMMs forward and 5 backward, of which 4 are as wide as Q and K.
    const double dims = (4.0 * plan.qk_dim + 3.0 * config_.model.head_dim) / 7;
    attention += 14 * pairs * config_.model.heads * dims / pairing;
  }
  return per_sequence_6nd(step) + attention;
}

}  // namespace nanorun
