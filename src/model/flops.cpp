#include "src/model/flops.hpp"

#include <algorithm>

#include "src/config/layer_list.hpp"
#include "src/config/schedule.hpp"
#include "src/model/topology.hpp"

namespace nanorun {

double flops_per_sequence(const Config& config, const ParameterTable& table, long step) {
  const ModelConfig& model = config.model;
  const double tokens = length_at(config, step);
  const Windows windows = windows_at(config, step);
  double weights = 0;
  for (const Parameter& p : table.parameters()) {
    if (p.group == Group::matrix || p.group == Group::lm_head) weights += static_cast<double>(p.size());
  }
  double attention = 0;
  for (int i = 0; i < model.layers; ++i) {
    if (!has_attention(model, i)) continue;
    // Paired heads are half as many, of twice the rows.
    const int pairing = names(model.paired_layers, i) ? 2 : 1;
    const double rows = pairing * tokens;
    const double reach =
        std::min<double>(rows, is_long_layer(config.window, i) ? windows.long_tokens : windows.short_tokens);
    const double pairs = reach * (rows - reach / 2);
    attention += 14 * pairs * model.width / pairing;  // 2 GEMMs forward, 5 backward
  }
  return 6 * weights * tokens + attention;
}

}  // namespace nanorun
