#pragma once
// Which tensors checkpoints hold of the weights and of the optimizer's state, as the rules have it.

#include <span>
#include <vector>

#include "src/base/slab.hpp"
#include "src/optimizer/averaged_rows.hpp"
#include "src/optimizer/update_rule.hpp"

namespace nanorun {

/// First parts of the names of what an outer step keeps.
inline constexpr const char *outer_weights = "/outer/weights/", *outer_momentum = "/outer/momentum/";

/// The tensors that a checkpoint holds for these rows of a parameter: weights, then state, then the gradients of a rule
/// with UpdateRule::gradient_prefix(), then what an outer step keeps.
template <class T>
std::vector<StateTensor> stored_tensors(const Config& config, const UpdateRule<T>& rule, const OwnedRows& rows) {
  std::vector<StateTensor> tensors{{"/weights/", rows}};
  for (StateTensor& state : rule.state(rows)) tensors.push_back(std::move(state));
  if (const std::string prefix = rule.gradient_prefix(); !prefix.empty()) tensors.push_back({prefix, rows});
  if (config.optimizer.outer_every > 0 && rows.parameter->group != Group::fixed) {
    for (const char* const kept : {outer_weights, outer_momentum}) tensors.push_back({kept, rows});
  }
  return tensors;
}

/// The tensor as a slab, with its rows in `data`.
template <class T>
Slab<T> slab_of(const StateTensor& tensor, std::span<T> data) {
  const OwnedRows& rows = tensor.rows;
  return {tensor.prefix + rows.parameter->name, rows.total_rows, rows.cols, rows.first_row, rows.row_count, data};
}

/// The same of what row number `row` of [[average]] keeps.
template <class T>
Slab<T> slab_of(std::size_t row, const AveragedRows& tensor, std::span<T> data) {
  const OwnedRows& rows = tensor.rows;
  return {average_dataset(row, tensor.name), rows.total_rows, rows.cols, rows.first_row, rows.row_count, data};
}

/// All tensors of a checkpoint of the deck, whole and without memory.
std::vector<Slab<kernels::acc_t<Real>>> stored_slabs(const Config& config, const ParameterTable& table);

}  // namespace nanorun
