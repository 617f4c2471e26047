// Ranks that read different tokens know which rows of the tables travel between them.

#include "src/optimizer/touched_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "src/data/bigram.hpp"
#include "tests/support/environment.hpp"

namespace nanorun {
namespace {

using kernels::Token;

constexpr int length = 256, sequences = 2;

/// 384 rows of the LM head. In stages of a step each, two sequences have 256 candidates together, or as many as all
/// rows, or no candidates.
Config small_config() {
  Config config;
  ModelConfig& model = config.model;
  model.vocabulary = 301;
  model.width = 16;
  model.heads = 2;
  model.head_dim = 8;
  model.layers = 4;
  model.value_path = ValuePath::gated_embeddings;
  model.value_layers = {1, 3};
  model.residual = Residual::scaled;
  model.bigram_rows = 777;
  model.tied_head = true;
  config.train.sequences = sequences * test_comm().size();
  config.train.steps = 4;
  for (const int candidates : {128, 256, 0, 128}) {
    StageConfig& stage = config.stage.emplace_back();
    stage.share = 0.25;
    stage.length = length;
    stage.candidates = candidates;
  }
  return config;
}

/// What a rank reads in a step: rows of `length` tokens and a last target.
std::vector<Token> tokens_of(int rank, int step) {
  std::vector<Token> tokens(sequences * (length + 1));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<Token>((i * i * 13 + rank * 71 + step) % 101);
  return tokens;
}

/// Rows of a table in which a rank's sequences have gradients.
std::set<std::int32_t> rows_of(const Config& config, const Bucket& table, int rank, int step) {
  std::set<std::int32_t> rows;
  const std::vector<Token> tokens = tokens_of(rank, step);
  CandidateSampler sampler(padded_vocabulary(config.model));
  for (int s = 0; s < sequences; ++s) {
    const Sequence sequence = Sequence::of(std::span(tokens).subspan(s * (length + 1), length + 1));
    std::vector<std::int32_t> read(sequence.tokens.begin(), sequence.tokens.end());
    if (table.lookup == Lookup::bigram) bigram_rows(read, sequence.tokens, config.model.bigram_rows);
    if (table.group == Group::lm_head) {
      const CandidateDraw draw = candidate_draw(config, step, rank * sequences + s);
      read.resize(draw.count);
      sampler.draw(read, sequence.targets, draw.start);
    }
    rows.insert(read.begin(), read.end());
  }
  return rows;
}

/// Rows in which rank `from` has gradients and which rank `to` owns; none if both are the same.
std::vector<std::int32_t> between(const Config& config, const Bucket& bucket, int from, int to, int step) {
  const Bounds bounds = bucket.bounds(NodeLayout::consecutive(test_comm().size(), 0));
  std::vector<std::int32_t> list;
  for (const std::int32_t row : rows_of(config, bucket, from, step)) {
    const std::size_t at = row * bucket.unit_size;
    if (from != to && at >= bounds[to] && at < bounds[to + 1]) list.push_back(row);
  }
  return list;
}

std::vector<std::int32_t> on_host(std::span<const std::int32_t> rows) {
  std::vector<std::int32_t> host(rows.size());
  ops::copy_to_host(test_context->comm_stream(), host.data(), rows.data(), rows.size_bytes());
  ops::synchronize(test_context->comm_stream());
  return host;
}

void expect_rows(const TouchedRows& rows, const Config& config, const Bucket& table, int step) {
  const int rank = test_comm().rank(), ranks = test_comm().size();
  ASSERT_EQ(rows.of(table).node.size(), 1u);
  const NodeRows& exchange = rows.of(table).node.front();
  std::size_t longest = 0;
  for (int from = 0; from < ranks; ++from) {
    EXPECT_EQ(on_host(exchange.from[from]), between(config, table, from, rank, step));
    EXPECT_EQ(on_host(exchange.to[from]), between(config, table, rank, from, step));
    for (int to = 0; to < ranks; ++to) longest = std::max(longest, between(config, table, from, to, step).size());
  }
  EXPECT_EQ(exchange.longest, longest);
  EXPECT_GT(longest, 0u);
}

TEST(TouchedRows, AreThoseInWhichTheSequencesHaveGradients) {
  SKIP_WITHOUT_DEVICES();
  const Config config = small_config();
  const ParameterTable table(config.model);
  Comm& comm = test_comm();
  const NodeComms comms(comm, 0);
  TouchedRows rows(config, table, comms);
  EXPECT_FALSE(rows.known());
  for (int step = 0; step < config.train.steps; ++step) {
    rows.read(tokens_of(comm.rank(), step), step);
    rows.exchange();
    rows.upload(test_context->comm_stream());
    EXPECT_EQ(rows.known(), comm.size() > 1);
    for (const Bucket& bucket : table.buckets()) {
      const bool some_rows = bucket.group == Group::embedding || (bucket.group == Group::lm_head && step % 3 == 0);
      ASSERT_EQ(rows.known(bucket), some_rows && comm.size() > 1) << bucket.layer;
      if (rows.known(bucket)) expect_rows(rows, config, bucket, step);
    }
  }
}

/// What a step reads is of the step before until the ranks have told each other.
TEST(TouchedRows, AreThoseOfTheStepBeforeUntilTheyAreExchanged) {
  SKIP_WITHOUT_DEVICES();
  if (test_comm().size() == 1) GTEST_SKIP() << "nothing travels";
  const Config config = small_config();
  const ParameterTable table(config.model);
  const NodeComms comms(test_comm(), 0);
  TouchedRows rows(config, table, comms);
  const auto head = std::ranges::find(table.buckets(), Group::lm_head, &Bucket::group);
  rows.read(tokens_of(test_comm().rank(), 0), 0);
  rows.exchange();
  rows.read(tokens_of(test_comm().rank(), 1), 1);
  EXPECT_TRUE(rows.known(*head));
  rows.exchange();
  EXPECT_FALSE(rows.known(*head));
}

TEST(TouchedRows, OfTheHeadAreAtMostTheCandidatesOfARank) {
  Config config = small_config();
  config.train.sequences = 8;
  for (const auto& [ranks, rows] : {std::pair(1, 384), {2, 384}, {4, 256}, {8, 128}}) {
    EXPECT_EQ(lm_head_rows(config, 0, ranks), rows) << ranks;
    EXPECT_EQ(lm_head_rows(config, 2, ranks), 384) << ranks;
  }
}

}  // namespace
}  // namespace nanorun
