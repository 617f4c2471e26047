#pragma once
// Collectives on tensors, in the memory that ops work on. They are enqueued on one stream; in the CPU build they are
// done when a call returns. No call allocates memory of the device.
//
// They have two levels: gradients are summed inside each node first, then between the nodes, and weights come back the
// other way. The parts in which ranks own a tensor are numbered as src/comm/node_layout.hpp says.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.hpp"
#include "src/comm/comm.hpp"
#include "src/comm/node_collectives.hpp"
#include "src/comm/node_comms.hpp"
#include "src/comm/rail_collectives.hpp"
#include "src/comm/traffic.hpp"
#include "src/config/config.hpp"

namespace nanorun {

/// Which rows of a table travel.
struct RowExchange {
  std::vector<NodeRows> node;                ///< by NodeComms::seat_rounds()
  std::vector<std::vector<RailRows>> rails;  ///< by NodeComms::rails()
};

class TensorComm {
 public:
  /// Collective. `stream` carries the collectives. Throws Error(communication).
  TensorComm(Comm& comm, kernels::Stream stream, const CommConfig& config = {});

  int rank() const { return comms_.all().rank(); }
  int size() const { return layout().ranks(); }
  const NodeLayout& layout() const { return comms_.layout(); }
  const NodeComms& comms() const { return comms_; }
  /// Number of this rank's part.
  int part() const { return layout().part_of(rank()); }
  kernels::Stream stream() const { return stream_; }
  /// What carries the tensors; empty where there is one rank.
  std::string transport() const;
  /// Lines for the log: the nodes with the memory of each level, and the settings of the transports. None on one node
  /// unless its transport has settings.
  std::vector<std::string> notes() const;

  /// Whether collectives occupy SMs, also while they wait for other ranks.
  bool occupies_sms() const;

  /// Whether tensors travel inside nodes, or between them.
  bool has(Level level) const { return level == Level::inside ? node_ != nullptr : !rails_.empty(); }

  /// Sums each part over the ranks, in place; on a rank the parts of other ranks are undefined afterwards. Elements
  /// travel inside a node in the format of comm.gradients, between nodes in bf16 where that is e5m2; the owner's own
  /// elements enter the sum unrounded. The order of the sum depends on the layout of the ranks alone. A = float, in the
  /// CPU build also double. The second overload does the part of one level alone: call it for Level::inside first, then
  /// for Level::between.
  template <class A>
  void reduce_scatter(std::span<A> data, const Bounds& parts);
  template <class A>
  void reduce_scatter(Level level, std::span<A> data, const Bounds& parts);
  /// Sums the rows of this rank's part of a table over the ranks that have gradients for them; other rows become zero.
  /// Likewise.
  template <class A>
  void reduce_scatter_rows(const kernels::Mat<A>& table, const RowExchange& rows);
  template <class A>
  void reduce_scatter_rows(Level level, const kernels::Mat<A>& table, const RowExchange& rows);
  /// Collective. Prepares memory for all_gather(). It must outlive the communicator and have one size on all ranks.
  template <class T>
  void share(std::span<T> memory) {
    share_bytes(std::as_writable_bytes(memory));
  }
  /// Copies each part to all ranks. `data` lies in memory that was prepared by share(). The second overload does the
  /// part of one level alone: call it for Level::between first, then for Level::inside.
  template <class T>
  void all_gather(std::span<T> data, const Bounds& parts) {
    for (const Level level : {Level::between, Level::inside}) all_gather(level, data, parts);
  }
  template <class T>
  void all_gather(Level level, std::span<T> data, const Bounds& parts) {
    gather_bytes(level, std::as_writable_bytes(data), parts, sizeof(T));
  }
  /// Collective. Waits, at most for the timeout, until the collectives that have been enqueued are done.
  void synchronize();
  /// At the end of a step: throws Error(communication) if a collective has failed.
  void check();
  /// Collective, except while an exception unwinds (~Transport). Ends all collectives, so that shared memory may go
  /// before this object. No collective may follow.
  void close();

  /// What this rank has sent so far.
  LevelTraffic sent() const;
  /// Bytes of the buffers of reduce_scatter, and an estimate of what the transports take.
  static std::size_t memory_bytes(const NodeLayout& layout, const CommConfig& config) {
    return memory_bytes(Level::inside, layout, config) + memory_bytes(Level::between, layout, config);
  }
  static std::size_t memory_bytes(Level level, const NodeLayout& layout, const CommConfig& config);

 private:
  void share_bytes(std::span<std::byte> memory);
  void gather_bytes(Level level, std::span<std::byte> data, const Bounds& parts, std::size_t element);

  NodeComms comms_;
  kernels::Stream stream_;
  CommConfig config_;
  std::unique_ptr<NodeCollectives> node_;                ///< null where a node has one rank
  std::vector<std::unique_ptr<RailCollectives>> rails_;  ///< as NodeComms::rails()
};

template <class A>
void TensorComm::reduce_scatter(std::span<A> data, const Bounds& parts) {
  for (const Level level : {Level::inside, Level::between}) reduce_scatter(level, data, parts);
}

template <class A>
void TensorComm::reduce_scatter(Level level, std::span<A> data, const Bounds& parts) {
  if (!has(level)) return;
  const Watchdog::Guard guard = comms_.all().watch("reduce_scatter");
  if (level == Level::inside) {
    for (int round = 0; round < comms_.seat_rounds(); ++round) node_->reduce_scatter(data, comms_.shares(parts, round));
    return;
  }
  for (std::size_t i = 0; i < rails_.size(); ++i)
    rails_[i]->reduce_scatter(data, comms_.parts_of_rail(parts, comms_.rails()[i].number));
}

template <class A>
void TensorComm::reduce_scatter_rows(const kernels::Mat<A>& table, const RowExchange& rows) {
  for (const Level level : {Level::inside, Level::between}) reduce_scatter_rows(level, table, rows);
}

template <class A>
void TensorComm::reduce_scatter_rows(Level level, const kernels::Mat<A>& table, const RowExchange& rows) {
  if (!has(level)) return;
  const Watchdog::Guard guard = comms_.all().watch("reduce_scatter of rows");
  if (level == Level::inside) {
    for (const NodeRows& round : rows.node) node_->reduce_scatter_rows(table, round);
    return;
  }
  for (std::size_t i = 0; i < rails_.size(); ++i) rails_[i]->reduce_scatter_rows(table, std::span(rows.rails[i]));
}

}  // namespace nanorun
