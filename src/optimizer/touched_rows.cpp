#include "src/optimizer/touched_rows.hpp"

#include <algorithm>

#include "src/data/bigram.hpp"

namespace nanorun {

using kernels::Token;

std::size_t lm_head_rows(const Config& config, long step, int ranks) {
  const std::size_t columns = padded_vocabulary(config.model), candidates = candidate_draw(config, step, 0).count;
  const std::size_t sequences = (config.train.sequences + ranks - 1) / ranks;
  return candidates == 0 ? columns : std::min(columns, candidates * sequences);
}

TouchedRows::TouchedRows(const Config& config, const ParameterTable& table, const NodeComms& comms)
    : config_(config), comms_(comms), candidates_(padded_vocabulary(config.model)) {
  const int ranks = comms.layout().ranks();
  if (ranks == 1) return;
  const std::size_t tokens = static_cast<std::size_t>(config.train.sequences / ranks) * longest_length(config);
  for (const Bucket& bucket : table.buckets()) {
    if (bucket.lookup == Lookup::none || group_of(bucket) < groups_.size()) continue;
    add_group(bucket, std::min(tokens, bucket.units));
  }
  const Bucket& lm_head = *std::ranges::find(table.buckets(), Group::lm_head, &Bucket::group);
  std::size_t most_rows = 0;
  for (int stage = 0; stage < stage_count(config); ++stage) {
    const std::size_t rows = lm_head_rows(config, stage_steps(config, stage).first, ranks);
    if (rows < lm_head.units) most_rows = std::max(most_rows, rows);
  }
  if (most_rows > 0) add_group(lm_head, most_rows);
  const std::size_t bytes = capacity() * sizeof(std::int32_t);
  device_ = Arena(bytes, "the rows of tables that travel", "lower train.length (with stages stage.N.length)");
  for (PinnedArena& host : host_) host = PinnedArena(bytes);
}

void TouchedRows::add_group(const Bucket& table, std::size_t most_rows) {
  groups_.push_back(table);
  most_rows_.push_back(most_rows);
  Bounds& first_rows = first_rows_.emplace_back();
  for (const std::size_t bound : table.bounds(comms_.layout())) first_rows.push_back(bound / table.unit_size);
  read_.emplace_back(0, static_cast<std::int64_t>(table.units));
}

/// Number of groups if a bucket is in none.
std::size_t TouchedRows::group_of(const Bucket& bucket) const {
  const auto same = [&](const Bucket& table) { return table.group == bucket.group && same_lookup(table, bucket); };
  return std::ranges::find_if(groups_, same) - groups_.begin();
}

/// Rows in all lists of a step, at most. On a rail a row is sent once at most, and arrives once from each rank that
/// sends it.
std::size_t TouchedRows::capacity() const {
  std::size_t rows = 0;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    rows += most_rows_[i];
    for (int round = 0; round < comms_.seat_rounds(); ++round) {
      const Bounds shares = comms_.shares(first_rows_[i], round);
      const std::size_t own = shares[comms_.node().rank() + 1] - shares[comms_.node().rank()];
      rows += (comms_.node().size() - 1) * std::min(most_rows_[i], own);
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

void TouchedRows::read(std::span<const Token> rows, long step) {
  for (RowSet& read : read_) read.clear();
  if (groups_.empty()) return;
  const Bucket& last = groups_.back();
  const int ranks = comms_.layout().ranks(), rank = comms_.all().rank();
  const bool whole_head = last.group == Group::lm_head && lm_head_rows(config_, step, ranks) == last.units;
  noted_ = groups_.size() - whole_head;
  const std::size_t row_size = length_at(config_, step) + 1;
  int number = rank * (config_.train.sequences / ranks);
  for (std::size_t first = 0; first < rows.size(); first += row_size) {
    const Sequence sequence = Sequence::of(rows.subspan(first, row_size));
    const CandidateDraw draw = candidate_draw(config_, step, number++);
    for (std::size_t i = 0; i < noted_; ++i) {
      for (const std::int32_t row : rows_of(groups_[i], sequence, draw)) read_[i].insert(row);
    }
  }
}

/// Rows of a table in which a sequence has gradients, some of them more than once. Valid until the next call.
std::span<const std::int32_t> TouchedRows::rows_of(const Bucket& table, const Sequence& sequence,
                                                   const CandidateDraw& draw) {
  sequence_.resize(table.group == Group::lm_head ? draw.count : sequence.tokens.size());
  if (table.group == Group::lm_head) {
    candidates_.draw(sequence_, sequence.targets, draw.start);
  } else if (table.lookup == Lookup::bigram) {
    bigram_rows(sequence_, sequence.tokens, config_.model.bigram_rows);
  } else {
    std::ranges::copy(sequence.tokens, sequence_.begin());
  }
  return sequence_;
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
  const std::vector<RowLists> all =
      exchange_rows(comms_, std::span(read_).first(noted_), std::span(first_rows_).first(noted_));
  exchanges_.assign(noted_, {});
  for (std::size_t i = 0; i < noted_; ++i) {
    RowExchange& exchange = exchanges_[i];
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

const RowExchange& TouchedRows::of(const Bucket& bucket) const { return exchanges_[group_of(bucket)]; }

}  // namespace nanorun
