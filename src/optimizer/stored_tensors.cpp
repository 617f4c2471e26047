#include "src/optimizer/stored_tensors.hpp"

namespace nanorun {

std::vector<Slab<kernels::acc_t<Real>>> stored_slabs(const Config& config, const ParameterTable& table) {
  const UpdateRules<Real> rules(config);
  std::vector<Slab<kernels::acc_t<Real>>> slabs;
  for (const Bucket& bucket : table.buckets()) {
    for (const OwnedRows& whole : table.owned(bucket, 0, 1)) {
      for (const auto& [prefix, rows] : stored_tensors(rules.of(bucket.group), whole)) {
        slabs.push_back(
            {prefix + rows.parameter->name, rows.total_rows, rows.cols, rows.first_row, rows.row_count, {}});
      }
    }
  }
  return slabs;
}

}  // namespace nanorun
