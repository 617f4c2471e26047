#include "src/optimizer/stored_tensors.hpp"

#include "src/optimizer/muon_blocks.hpp"

namespace nanorun {

std::vector<StoredGroup> stored_groups(const Config& config, const Bucket& bucket) {
  std::vector<StoredGroup> groups{{"/weights/", BucketPart::master}};
  if (bucket.fixed()) return groups;
  if (bucket.group == Group::matrix) {
    groups.push_back({"/muon/momentum/", BucketPart::moment1});
    if (config.optimizer.normuon_beta > 0) groups.push_back({"/muon/second_moment/", BucketPart::moment2, true});
    return groups;
  }
  groups.push_back({"/adam/m/", BucketPart::moment1});
  groups.push_back({"/adam/v/", BucketPart::moment2});
  if (config.optimizer.adam_period > 1) groups.push_back({"/adam/gradient/", BucketPart::gradients});
  return groups;
}

std::vector<Slab<float>> stored_slabs(const Config& config, const ParameterTable& table) {
  std::vector<Slab<float>> slabs;
  for (const Bucket& bucket : table.buckets()) {
    for (const OwnedRows& whole : table.owned(bucket, 0, 1)) {
      for (const StoredGroup& group : stored_groups(config, bucket)) {
        const OwnedRows rows = group.lines ? line_rows(config, whole) : whole;
        slabs.push_back(
            {group.name + rows.parameter->name, rows.total_rows, rows.cols, rows.first_row, rows.row_count, {}});
      }
    }
  }
  return slabs;
}

}  // namespace nanorun
