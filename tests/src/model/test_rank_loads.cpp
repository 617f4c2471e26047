#include "src/model/rank_loads.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/optimizer/update_rule.hpp"
#include "tests/support/tiny_config.hpp"

namespace nanorun {
namespace {

using Sizes = std::vector<double>;

/// Matrices whose queries and keys are updated in smaller blocks than the rest, state of two formats, and bigrams.
Config config_of_many_kinds() {
  Config config = tiny_config();
  config.optimizer.muon_block_heads = 1;
  config.optimizer.normuon_beta = 0.9;
  config.model.bigram_rows = 20;
  return config;
}

/// Memory and work that each rule needs for a load.
Sizes needs_of(const ParameterTable& table, const UpdateRules<float>& rules, const RankLoad& load) {
  Sizes needs;
  for (const auto& [name, rule] : rules.all()) {
    const RankLoad part = rules.part(table, load, name);
    needs.push_back(static_cast<double>(rule->scratch_bytes(part)));
    needs.push_back(rule->work(part));
    for (const std::vector<OwnedRows>& bucket : part) {
      for (const OwnedRows& rows : bucket) {
        if (rows.row_count == 0) continue;
        for (const StateTensor& state : rule->state(rows)) needs.push_back(static_cast<double>(state.rows.size()));
      }
    }
  }
  return needs;
}

TEST(RankLoads, OneOfEachKindStandsForAllRanks) {
  const Config config = config_of_many_kinds();
  const ParameterTable table(config.model);
  const UpdateRules<float> rules(config);
  for (const auto& [ranks, on_node] : {std::pair{1, 0}, {3, 0}, {19, 8}, {64, 4}, {256, 8}}) {
    const NodeLayout layout = NodeLayout::consecutive(ranks, on_node);
    std::vector<Sizes> known;
    for (const RankLoad& load : distinct_loads(table, layout)) known.push_back(needs_of(table, rules, load));
    EXPECT_LE(known.size(), static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      const Sizes needs = needs_of(table, rules, load_of(table, layout, rank));
      EXPECT_NE(std::ranges::find(known, needs), known.end()) << "rank " << rank << " of " << ranks;
    }
  }
}

TEST(RankLoads, OfThousandsOfRanksFewDiffer) {
  const ParameterTable table(config_of_many_kinds().model);
  const std::size_t of_hundreds = distinct_loads(table, NodeLayout::consecutive(1024, 8)).size();
  EXPECT_LE(of_hundreds, 300u);
  EXPECT_LE(distinct_loads(table, NodeLayout::consecutive(16384, 8)).size(), of_hundreds + 10);
}

}  // namespace
}  // namespace nanorun
