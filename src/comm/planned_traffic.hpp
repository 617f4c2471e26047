#pragma once
// What a rank sends in the collectives of TensorComm, counted from the layout of the ranks. Nothing is sent.

#include "src/comm/node_layout.hpp"
#include "src/comm/row_lists.hpp"
#include "src/comm/traffic.hpp"
#include "src/config/config.hpp"

namespace nanorun {

/// Gradients have the type acc_t<Real>.
class PlannedTraffic {
 public:
  /// The traffic of one rank. The layout outlives it.
  PlannedTraffic(const NodeLayout& layout, int rank, const CommConfig& config);

  /// TensorComm::reduce_scatter() of gradients.
  LevelTraffic reduce_scatter(const Bounds& parts) const;
  /// TensorComm::reduce_scatter_rows() of rows of `cols` gradients each.
  LevelTraffic reduce_scatter_rows(const RowLists& lists, std::size_t cols) const;
  /// An upper bound of the same where each rank has gradients in `touched` rows, spread evenly over a table.
  /// `first_rows`: boundaries of the parts, in rows.
  LevelTraffic reduce_scatter_rows(const Bounds& first_rows, double touched, std::size_t cols) const;
  /// TensorComm::all_gather() of elements of so many bytes.
  LevelTraffic all_gather(const Bounds& parts, std::size_t element) const;

 private:
  /// How gradients travel in one level: bytes of an element, and of the slot in which a message arrives.
  struct Slots {
    std::size_t element, bytes;
    /// Messages that carry so many elements; `together` consecutive ones are never parted.
    Traffic carry(std::size_t elements, std::size_t together = 1) const;
  };

  const NodeLayout& layout_;
  int node_, place_;
  std::vector<int> rails_;  ///< rails in which the rank takes part
  Slots inside_{}, between_{};
};

}  // namespace nanorun
