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

ModelConfig small_model() {
  ModelConfig model;
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
  return model;
}

/// What a rank reads in a step: rows of `length` tokens and a last target.
std::vector<Token> tokens_of(int rank, int step) {
  std::vector<Token> tokens(sequences * (length + 1));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<Token>((i * i * 13 + rank * 71 + step) % 301);
  return tokens;
}

/// Rows of a bucket that a rank's sequences read.
std::set<std::int32_t> rows_of(const ModelConfig& model, bool bigrams, int rank, int step) {
  std::set<std::int32_t> rows;
  const std::vector<Token> tokens = tokens_of(rank, step);
  for (int s = 0; s < sequences; ++s) {
    const std::span<const Token> sequence(&tokens[s * (length + 1)], length);
    std::vector<std::int32_t> read(sequence.begin(), sequence.end());
    if (bigrams) bigram_rows(read, sequence, model.bigram_rows);
    rows.insert(read.begin(), read.end());
  }
  return rows;
}

/// Rows that rank `from` reads and rank `to` owns; none if both are the same.
std::vector<std::int32_t> between(const ModelConfig& model, const Bucket& bucket, bool bigrams, int from, int to,
                                  int step) {
  const Bounds bounds = bucket.bounds(test_comm().size());
  std::vector<std::int32_t> list;
  for (const std::int32_t row : rows_of(model, bigrams, from, step)) {
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

TEST(TouchedRows, AreThoseThatTheSequencesRead) {
  SKIP_WITHOUT_DEVICES();
  const ModelConfig model = small_model();
  const ParameterTable table(model);
  Comm& comm = test_comm();
  const int rank = comm.rank(), ranks = comm.size();
  TouchedRows rows(model, table, rank, ranks, sequences * length);
  EXPECT_FALSE(rows.known());
  for (const int step : {0, 1, 2}) {
    rows.read(tokens_of(rank, step), length);
    rows.exchange(comm);
    rows.upload(test_context->comm_stream());
    EXPECT_EQ(rows.known(), ranks > 1);
    for (const Bucket& bucket : table.buckets()) {
      if (bucket.group != Group::embedding || ranks == 1) continue;
      const bool bigrams = bucket.offset == table.find("bigram").offset;
      const RowExchange& exchange = rows.of(bucket);
      std::size_t longest = 0;
      for (int from = 0; from < ranks; ++from) {
        EXPECT_EQ(on_host(exchange.from[from]), between(model, bucket, bigrams, from, rank, step));
        EXPECT_EQ(on_host(exchange.to[from]), between(model, bucket, bigrams, rank, from, step));
        for (int to = 0; to < ranks; ++to) {
          longest = std::max(longest, between(model, bucket, bigrams, from, to, step).size());
        }
      }
      EXPECT_EQ(exchange.longest, longest);
      EXPECT_GT(longest, 0u);
    }
  }
}

}  // namespace
}  // namespace nanorun
