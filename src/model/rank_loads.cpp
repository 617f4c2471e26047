#include "src/model/rank_loads.hpp"

#include <cstdint>
#include <set>

namespace nanorun {

namespace {

/// What loads that need the same memory and work have in common.
using Key = std::vector<std::uint64_t>;

void append_to(Key& key, const std::vector<OwnedRows>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const OwnedRows& rows = tensors[i];
    if (rows.row_count == 0) continue;
    key.insert(key.end(), {i, rows.row_count});
    if (rows.parameter->group == Group::matrix) key.push_back(rows.first_row);
  }
  key.push_back(tensors.size());  // no index of a tensor: ends the bucket
}

}  // namespace

RankLoad load_of(const ParameterTable& table, const NodeLayout& layout, int rank) {
  RankLoad load;
  for (const Bucket& bucket : table.buckets()) load.push_back(table.owned(bucket, layout, rank));
  return load;
}

std::vector<RankLoad> distinct_loads(const ParameterTable& table, const NodeLayout& layout) {
  std::vector<Bounds> bounds;
  for (const Bucket& bucket : table.buckets()) bounds.push_back(bucket.bounds(layout));
  std::vector<RankLoad> loads;
  std::set<Key> known;
  for (int part = 0; part < layout.ranks(); ++part) {
    RankLoad load;
    Key key;
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      load.push_back(table.owned(table.buckets()[i], bounds[i][part], bounds[i][part + 1]));
      append_to(key, load.back());
    }
    if (known.insert(std::move(key)).second) loads.push_back(std::move(load));
  }
  return loads;
}

}  // namespace nanorun
