#pragma once
// Rows of lookup tables whose updates by Adam are deferred until a sequence reads them
// (kernels/optimizer/adam_rows.hpp). An update changes all rows of a table, since their moments decay, but a step reads
// few of them. The others get all updates that they have missed when they are next read: the same weights, with a
// fraction of the memory traffic.
//   read()      before each sequence of training
//   update()    of each table that is due, then end_step() in every step
//   complete()  before anything else reads the tables or their state
// Steps count from 0 and ascend without gaps; only after restart() may they begin anywhere. A step at or beyond
// train.steps is Error(internal). Where a table's period changes (UpdateSteps), all its rows are brought up to date
// first, as betas change with it.

#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/config/config.hpp"
#include "src/data/uploader.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/owned_bucket.hpp"

namespace nanorun {

/// T as in Optimizer.
template <class T>
class DeferredRows {
 public:
  using Master = kernels::acc_t<T>;

  /// Whether updates of a bucket's rows are deferred: with one rank, for lookup tables that only lookups read and give
  /// gradients. Several ranks gather all new rows of a table after every update.
  static bool serves(const Config& config, const ParameterTable& table, const Bucket& bucket, int ranks);
  /// Bytes of device memory that this class takes beside the tables.
  static std::size_t bytes(const Config& config, const ParameterTable& table, int ranks);

  /// The config outlives it. Ops run on the stream.
  DeferredRows(const Config& config, kernels::Stream stream) : config_(config), stream_(stream) {}

  /// Takes over the updates of a bucket for which serves() holds and which outlives it. Waits for the device.
  void add(const OwnedBucket<T>& owned);
  bool has(const Bucket& bucket) const;
  bool empty() const { return tables_.empty(); }

  /// From now on all rows are up to date. Until the first read() any row may have gradients.
  void restart();
  /// Brings the rows that a sequence of `step` reads up to date.
  void read(const DeviceSequence& sequence, long step);
  /// Updates a table at the end of `step`: the rows read since the last update, or all rows if read() has not been
  /// called since then. Adds to squares [2] as ops::adam_update does.
  void update(const Bucket& bucket, long step, double* squares);
  void end_step(long step);
  /// Brings all rows up to date.
  void complete();

 private:
  /// Tables with same_lookup(), of which a sequence reads the same rows, that are updated at the same steps.
  struct LookupGroup {
    Bucket table;  ///< one of them
    UpdateSteps updates;
    TensorArena<std::int32_t> last_read;
    TensorArena<std::int32_t> list;  ///< memory of a RowList
    int made = 0;                    ///< updates so far
    bool late = false;               ///< the next update is one of the late period
    bool restarted = true;           ///< the state is new or restored, and `made` is not set yet
    bool reads_known = false;        ///< whether read() was called since the last update

    kernels::RowList row_list() const;
  };
  struct Table {
    const OwnedBucket<T>* owned;
    std::size_t group;
    TensorArena<kernels::AdamRates<Master>> rates;  ///< rates of each update of the run

    int rows() const { return static_cast<int>(owned->bucket.units); }
    int cols() const { return static_cast<int>(owned->bucket.unit_size); }
  };

  std::size_t group_of(const OwnedBucket<T>& owned);
  void begin(std::size_t group, long step);
  void complete(std::size_t group);
  void mark_all_read(LookupGroup& group);
  template <class Body>
  void visit(const Table& table, const Body& body) const;

  const Config& config_;
  kernels::Stream stream_;
  std::vector<LookupGroup> groups_;
  std::vector<Table> tables_;
};

}  // namespace nanorun
