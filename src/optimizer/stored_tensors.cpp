#include "src/optimizer/stored_tensors.hpp"

namespace nanorun {

std::vector<Slab<kernels::acc_t<Real>>> stored_slabs(const Config& config, const ParameterTable& table) {
  const UpdateRules<Real> rules(config);
  std::vector<Slab<kernels::acc_t<Real>>> slabs;
  for (const Bucket& bucket : table.buckets()) {
    for (const OwnedRows& whole : table.owned(bucket, NodeLayout(), 0)) {
      for (const StateTensor& tensor : stored_tensors(config, rules.of(bucket.group), whole)) {
        slabs.push_back(slab_of<kernels::acc_t<Real>>(tensor, {}));
      }
      for (std::size_t row = 0; row < config.average.size(); ++row) {
        for (const AveragedRows& tensor : averaged_rows(config, config.average[row], whole)) {
          slabs.push_back(slab_of<kernels::acc_t<Real>>(row, tensor, {}));
        }
      }
    }
  }
  return slabs;
}

}  // namespace nanorun
