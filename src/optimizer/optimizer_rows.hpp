#pragma once
// Lookup tables of which Adam updates rows only when sequences read them (kernels/optimizer/adam_rows.hpp). An update
// changes all rows of a table, since their moments decay, but a step reads few of them. The others wait, and get all
// updates that they have missed when they are next read: the same weights, with a fraction of the memory traffic.
//   read()      before each sequence of training
//   update()    of each table, then end_update()
//   complete()  before the tables or their state are read otherwise
// Steps count from 0 and ascend without gaps, but after restart(). One at or beyond train.steps is Error(internal).

#include <vector>

#include "kernels/ops.hpp"
#include "src/base/arena.hpp"
#include "src/config/config.hpp"
#include "src/data/uploader.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/optimizer_state.hpp"
#include "src/optimizer/update_rules.hpp"

namespace nanorun {

/// T as in Optimizer.
template <class T>
class LazyRows {
 public:
  using Master = kernels::acc_t<T>;

  /// Whether the rows of a bucket's table may wait: it is on one rank, where nothing but lookups reads it or gives it
  /// gradients. Ranks that share a table gather all its new rows after every update.
  static bool serves(const Config& config, const ParameterTable& table, const Bucket& bucket, int ranks);
  /// Device memory that it takes beside the tables.
  static std::size_t bytes(const Config& config, const ParameterTable& table, int ranks);

  /// The config outlives it. Ops run on the stream.
  LazyRows(const Config& config, kernels::Stream stream) : config_(config), stream_(stream) {}

  /// A table's masters, the weights that lookups read, gradients and moments: all elements of a bucket.
  struct Tensors {
    Kept<T> master;
    std::span<T> copy;
    std::span<Master> gradients;
    Kept<T> moment1, moment2;
  };
  /// Takes over the updates of a bucket that it serves. Waits for the device.
  void add(const ParameterTable& table, const Bucket& bucket, const Tensors& tensors);
  bool has(const Bucket& bucket) const;
  bool empty() const { return tables_.empty(); }

  /// All rows are up to date from now on, and may have gradients.
  void restart();
  /// Brings the rows that a sequence reads up to date, for the step to which it belongs.
  void read(const DeviceSequence& sequence, long step);
  /// The update at the end of a step, of the rows that have been read since the one before; of all rows where read()
  /// has not been called since. Adds to squares [2] as ops::adam_update does.
  void update(const Bucket& bucket, long step, double* squares);
  void end_update(long step);
  /// Brings all rows up to date.
  void complete();

 private:
  /// Tables that are read by the same rows.
  struct Kind {
    Bucket table;  ///< one of them
    TensorArena<std::int32_t> last_read;
    TensorArena<std::int32_t> list;  ///< memory of a RowList

    kernels::RowList row_list() const;
  };
  struct Table {
    std::size_t offset;  ///< of the bucket
    std::size_t kind;
    int rows, cols;
    Tensors tensors;
    UpdateRule rule;
    TensorArena<kernels::AdamRates<Master>> rates;
  };

  std::size_t kind_of(const Bucket& bucket);
  void begin_after(long updates);
  template <class Body>
  void visit(const Table& table, const Body& body) const;

  const Config& config_;
  kernels::Stream stream_;
  std::vector<Kind> kinds_;
  std::vector<Table> tables_;
  int updates_ = 0;     ///< made so far
  bool fresh_ = true;   ///< since restart(), which does not know how many updates have been made
  bool noted_ = false;  ///< whether read() was called since the last update
};

}  // namespace nanorun
