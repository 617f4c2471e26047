#pragma once
// What ranks send in the collectives of TensorComm, counted from the layout of the ranks. Nothing is sent.

#include <vector>

#include "kernels/ops.hpp"
#include "src/comm/node_layout.hpp"
#include "src/comm/row_lists.hpp"
#include "src/comm/traffic.hpp"
#include "src/config/config.hpp"

namespace nanorun {

class PlannedTraffic {
 public:
  /// The layout outlives it.
  PlannedTraffic(const NodeLayout& layout, const CommConfig& config);

  // What each rank sends, by rank. The time grows with the ranks and the logarithm of the nodes.

  /// TensorComm::reduce_scatter() of gradients of type A, acc_t<Real> or Real.
  template <class A = kernels::acc_t<Real>>
  std::vector<LevelTraffic> reduce_scatter(const Bounds& parts) const;
  /// The most that TensorComm::reduce_scatter_rows() sends of rows of `cols` gradients of type acc_t<Real> each, where
  /// each rank has gradients in up to `touched` rows of a table, whichever they are. `first_rows`: boundaries of the
  /// parts, in rows.
  std::vector<LevelTraffic> reduce_scatter_rows(const Bounds& first_rows, std::size_t touched, std::size_t cols) const;
  /// TensorComm::all_gather() of elements of so many bytes.
  std::vector<LevelTraffic> all_gather(const Bounds& parts, std::size_t element) const;

  /// What one rank sends in TensorComm::reduce_scatter_rows() of the rows of its lists.
  LevelTraffic reduce_scatter_rows(int rank, const RowLists& lists, std::size_t cols) const;

 private:
  /// How gradients travel in one level: bytes of an element, and of the slot in which a message arrives.
  struct Slots {
    std::size_t element, bytes;
    /// Messages that carry so many elements; `together` consecutive ones are never parted.
    Traffic carry(std::size_t elements, std::size_t together = 1) const;
  };

  template <class A>
  Slots inside(int node) const;
  template <class A>
  Slots between() const;
  template <class A, class Share>
  void add_inside(std::vector<LevelTraffic>& sent, const Bounds& parts, const Share& share) const;
  template <class OnRail>
  void add_between(std::vector<LevelTraffic>& sent, const Bounds& parts, const OnRail& on_rail) const;

  const NodeLayout& layout_;
  CommConfig config_;
};

}  // namespace nanorun
