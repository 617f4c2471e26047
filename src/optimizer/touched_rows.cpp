#include "src/optimizer/touched_rows.hpp"

#include <algorithm>

#include "src/data/bigram.hpp"

namespace nanorun {

using kernels::Token;

TouchedRows::TouchedRows(const ModelConfig& model, const ParameterTable& table, const NodeComms& comms,
                         std::size_t tokens)
    : bigram_table_rows_(model.bigram_rows), comms_(comms) {
  if (comms.layout().ranks() == 1) return;
  for (const Bucket& bucket : table.buckets()) {
    const auto same = [&](const Bucket& group) { return same_lookup(group, bucket); };
    if (bucket.lookup == Lookup::none || std::ranges::any_of(groups_, same)) continue;
    groups_.push_back(bucket);
    Bounds& first_rows = first_rows_.emplace_back();
    for (const std::size_t bound : bucket.bounds(comms.layout())) first_rows.push_back(bound / bucket.unit_size);
    read_.emplace_back(0, static_cast<std::int64_t>(bucket.units));
  }
  exchanges_.resize(groups_.size());
  const std::size_t bytes = capacity(tokens) * sizeof(std::int32_t);
  device_ = Arena(bytes, "the rows of tables that travel", "lower train.length (with stages stage.N.length)");
  for (PinnedArena& host : host_) host = PinnedArena(bytes);
}

/// Rows in all lists of a step, at most. On a rail a row is sent once at most, and arrives once from each rank that
/// sends it.
std::size_t TouchedRows::capacity(std::size_t tokens) const {
  std::size_t rows = 0;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    rows += std::min(tokens, groups_[i].units);
    for (int round = 0; round < comms_.seat_rounds(); ++round) {
      const Bounds shares = comms_.shares(first_rows_[i], round);
      const std::size_t own = shares[comms_.node().rank() + 1] - shares[comms_.node().rank()];
      rows += (comms_.node().size() - 1) * std::min(tokens, own);
    }
    for (const NodeComms::Rail& rail : comms_.rails()) {
      const Bounds parts = comms_.parts_of_rail(first_rows_[i], rail.number);
      for (const auto& [skip, blocks] : circulant_rounds(rail.comm->size())) {
        rows +=
            arc_of(parts, rail.comm->rank() + skip, blocks).size() + arc_of(parts, rail.comm->rank(), blocks).size();
      }
    }
  }
  return rows;
}

void TouchedRows::read(std::span<const Token> rows, int length) {
  for (RowSet& read : read_) read.clear();
  if (groups_.empty()) return;
  sequence_.resize(length);
  for (std::size_t first = 0; first < rows.size(); first += length + 1) {
    const std::span<const Token> tokens = rows.subspan(first, length);
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].lookup == Lookup::bigram) {
        bigram_rows(sequence_, tokens, bigram_table_rows_);
      } else {
        std::ranges::copy(tokens, sequence_.begin());
      }
      for (const std::int32_t row : sequence_) read_[i].insert(row);
    }
  }
}

void TouchedRows::exchange() {
  if (groups_.empty()) return;
  slot_ = 1 - slot_;
  const std::span<std::int32_t> host(reinterpret_cast<std::int32_t*>(host_[slot_].space().data()),
                                     host_[slot_].space().size() / sizeof(std::int32_t));
  const auto* const device = reinterpret_cast<const std::int32_t*>(device_.space().data());
  std::size_t at = 0;
  const auto keep = [&](const RowLists::Rows& rows) {
    std::ranges::copy(rows, host.subspan(at).begin());
    at += rows.size();
    return std::span(device + (at - rows.size()), rows.size());
  };
  const std::vector<RowLists> all = exchange_rows(comms_, read_, first_rows_);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    RowExchange& exchange = exchanges_[i] = {};
    for (const RowLists::Node& lists : all[i].node) {
      NodeRows& node = exchange.node.emplace_back();
      for (const RowLists::Rows& rows : lists.to) node.to.push_back(keep(rows));
      for (const RowLists::Rows& rows : lists.from) node.from.push_back(keep(rows));
      node.longest = lists.longest;
    }
    for (const std::vector<RowLists::Rail>& rounds : all[i].rails) {
      std::vector<RailRows>& rail = exchange.rails.emplace_back();
      for (const RowLists::Rail& round : rounds) {
        const std::span<const std::int32_t> out = keep(round.out);
        rail.push_back({out, keep(round.in)});
      }
    }
  }
  bytes_ = at * sizeof(std::int32_t);
  known_ = true;
}

void TouchedRows::upload(kernels::Stream stream) {
  if (known_) ops::copy_to_device(stream, device_.space().data(), host_[slot_].space().data(), bytes_);
}

const RowExchange& TouchedRows::of(const Bucket& bucket) const {
  const auto same = [&](const Bucket& group) { return same_lookup(group, bucket); };
  return exchanges_[std::ranges::find_if(groups_, same) - groups_.begin()];
}

}  // namespace nanorun
