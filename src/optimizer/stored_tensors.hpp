#pragma once
// Which tensors checkpoints hold of the weights and of the optimizer's state.

#include <vector>

#include "src/base/slab.hpp"
#include "src/config/config.hpp"
#include "src/model/params.hpp"

namespace nanorun {

/// What a rank keeps of a bucket.
enum class BucketPart { master, moment1, moment2, gradients };

/// The tensors of a bucket that lie in one group of a checkpoint.
struct StoredGroup {
  const char* name;  ///< begins and ends in '/'
  BucketPart part;
  bool lines = false;  ///< a tensor has the shape of line_rows()
};

/// The groups that hold tensors of the bucket, by the deck.
std::vector<StoredGroup> stored_groups(const Config& config, const Bucket& bucket);

/// All tensors of a checkpoint of the deck, whole and without memory.
std::vector<Slab<float>> stored_slabs(const Config& config, const ParameterTable& table);

}  // namespace nanorun
