// With candidates only rows of the LM head's gradient travel, which the step has: training is the same bit for bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

#include "src/comm/planned_traffic.hpp"
#include "src/run/training_plan.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/tiny_training.hpp"

namespace nanorun {
namespace {

constexpr int stage_steps_each = 2, stages = 4, steps = stages * stage_steps_each, sequences = 2, length = 128;

/// 640 rows of the LM head. In the first and the last stage fewer of them have gradients on a rank. Stages begin in the
/// middle of periods.
Config small_config(bool tied, int period) {
  Config config;
  config.model.vocabulary = 600;
  config.model.width = ops::on_host ? 32 : 128;
  config.model.heads = ops::on_host ? 2 : 1;
  config.model.head_dim = ops::on_host ? 16 : 128;
  config.model.layers = 2;
  config.model.value_embeddings = 1;
  config.model.tied_head = tied;
  config.head.precision = ops::on_host ? LmHeadChoice::fp32 : LmHeadChoice::bf16;
  config.window.layers = "LS";
  config.optimizer.adam_period = period;
  config.train.steps = steps;
  config.train.sequences = sequences * test_comm().size();
  for (const int candidates : {128, 384, 0, 256}) {
    StageConfig& stage = config.stage.emplace_back();
    stage.share = 1.0 / stages;
    stage.length = stage.short_window = stage.long_window = length;
    stage.candidates = candidates;
  }
  return config;
}

/// Fewer than 100 different ones in a sequence.
std::vector<kernels::Token> tokens_of(const Config& config) {
  std::mt19937 generator(5);
  std::vector<kernels::Token> tokens(static_cast<std::size_t>(steps) * config.train.sequences * (length + 1));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::size_t sequence = i / (length + 1);
    tokens[i] = static_cast<kernels::Token>((sequence * 37 + generator() % 90) % 599);
  }
  return tokens;
}

struct Result {
  std::vector<double> losses;
  std::vector<std::vector<float>> state;  ///< weights and what the optimizer keeps
  std::vector<std::uint64_t> bytes;       ///< that the rank has sent in each step
};

Result train(const Config& config, bool notes_rows) {
  TinyTraining training(config, tokens_of(config), 599, test_comm());
  training.notes_rows = notes_rows;
  Result result;
  for (int step = 0; step < steps; ++step) {
    const LevelTraffic before = training.tensor_comm.sent();
    result.losses.push_back(training.run(1).front());
    const LevelTraffic sent = training.tensor_comm.sent() - before;
    result.bytes.push_back(sent.inside.bytes + sent.between.bytes);
  }
  for (const Slab<float>& slab : training.optimizer.slabs()) {
    result.state.emplace_back(slab.data.begin(), slab.data.end());
  }
  return result;
}

/// Ranks per node: 0, which are all of them, and others, of some of which the last node has fewer.
std::vector<int> layouts() {
  const int ranks = test_comm().size();
  if (ranks == 1) return {0};
  return ranks == 2 ? std::vector{0, 1} : std::vector{0, 2, ranks > 4 ? 3 : 1};
}

/// Sums have the same order, and what does not travel is zero.
TEST(CandidateGradients, TrainAsTheWholeHead) {
  SKIP_WITHOUT_DEVICES();
  for (const auto& [tied, period, untie_step] : {std::tuple(false, 2, 0), {true, 5, 0}, {true, 2, 3}}) {
    Config config = small_config(tied, period);
    config.train.untie_step = untie_step;
    for (const int ranks_per_node : layouts()) {
      config.comm.ranks_per_node = ranks_per_node;
      const Result whole = train(config, false), rows = train(config, true);
      EXPECT_EQ(rows.losses, whole.losses) << period << ", ranks per node " << ranks_per_node;
      EXPECT_TRUE(rows.state == whole.state) << period << ", ranks per node " << ranks_per_node;
      EXPECT_EQ(rows.bytes == whole.bytes, test_comm().size() == 1);
    }
  }
}

/// Gradients in fewer bits, and clipped.
TEST(CandidateGradients, TrainAsTheWholeHeadIfRoundedOrClipped) {
  SKIP_WITHOUT_DEVICES();
  Config config = small_config(true, 1);
  config.comm.gradients = kernels::WireFormat::bf16;
  config.comm.ranks_per_node = 2;
  EXPECT_TRUE(train(config, true).state == train(config, false).state);
  config.optimizer.clip_norm = 0.1;
  EXPECT_TRUE(train(config, true).state == train(config, false).state);
}

/// The rows of a table in which this rank has gradients at a step.
RowSet rows_of(const Config& config, const Bucket& table, long step) {
  RowSet rows(0, static_cast<std::int64_t>(table.units));
  const std::vector<kernels::Token> tokens = tokens_of(config);
  CandidateSampler sampler(padded_vocabulary(config.model));
  for (int s = 0; s < sequences; ++s) {
    const int number = test_comm().rank() * sequences + s;
    const std::size_t at = (step * config.train.sequences + number) * (length + 1);
    const Sequence sequence = Sequence::of(std::span(tokens).subspan(at, length + 1));
    const CandidateDraw draw = candidate_draw(config, step, number);
    std::vector<std::int32_t> list(draw.count);
    if (draw.count > 0) sampler.draw(list, sequence.targets, draw.start);
    if (table.group == Group::embedding) list.assign(sequence.tokens.begin(), sequence.tokens.end());
    for (const std::int32_t row : list) rows.insert(row);
  }
  return rows;
}

/// What this rank sends of a bucket's gradients at a step, by the rows that all ranks have.
LevelTraffic sent_of(const Config& config, const NodeComms& comms, const Bucket& bucket, long step) {
  const int rank = test_comm().rank(), stage = stage_of(config, step);
  const PlannedTraffic planned(comms.layout(), config.comm);
  const Bounds parts = bucket.bounds(comms.layout());
  const bool whole_head = bucket.group == Group::lm_head && (stage == 1 || stage == 2);
  if (whole_head || (bucket.group != Group::lm_head && bucket.lookup == Lookup::none))
    return planned.reduce_scatter(parts)[rank];
  Bounds first_rows;
  for (const std::size_t part : parts) first_rows.push_back(part / bucket.unit_size);
  const RowSet own = rows_of(config, bucket, step);
  const RowLists lists = exchange_rows(comms, std::span(&own, 1), std::span(&first_rows, 1)).front();
  return planned.reduce_scatter_rows(rank, lists, bucket.unit_size);
}

/// Message by message, and no more than a dry run shows.
TEST(CandidateGradients, SendTheirRowsAsPlanned) {
  SKIP_WITHOUT_DEVICES();
  Config config = small_config(false, 1);
  for (const int ranks_per_node : layouts()) {
    config.comm.ranks_per_node = ranks_per_node;
    TinyTraining training(config, tokens_of(config), 599, test_comm());
    training.notes_rows = true;
    const NodeComms& comms = training.tensor_comm.comms();
    const PlannedTraffic planned(comms.layout(), config.comm);
    const TrainingPlan plan = plan_of(config, training.table, comms.layout());
    for (int step = 0; step < steps; ++step) {
      LevelTraffic expected;
      for (const Bucket& bucket : training.table.buckets()) {
        if (bucket.fixed()) continue;
        const LevelTraffic gradients = sent_of(config, comms, bucket, step);
        expected += gradients;
        expected +=
            planned.all_gather(bucket.bounds(comms.layout()), weight_bytes(bucket.scalars()))[test_comm().rank()];
        if (bucket.group != Group::lm_head || test_comm().size() == 1) continue;
        const StagePlan& stage = plan.stages[stage_of(config, step)];
        EXPECT_LE(gradients.inside.bytes + gradients.between.bytes, stage.head_bytes);
        EXPECT_EQ(stage.head_rows, step < stage_steps_each ? 256 : step < (stages - 1) * stage_steps_each ? 640 : 512);
      }
      const LevelTraffic before = training.tensor_comm.sent();
      training.run(1);
      EXPECT_EQ(training.tensor_comm.sent() - before, expected) << step << ", ranks per node " << ranks_per_node;
    }
  }
}

/// Of 640 rows a rank has gradients in 256 at most.
TEST(CandidateGradients, SendLessThanTheWholeHead) {
  SKIP_WITHOUT_DEVICES();
  if (test_comm().size() == 1) GTEST_SKIP() << "nothing travels";
  const Config config = small_config(false, 1);
  const Result whole = train(config, false), rows = train(config, true);
  const std::size_t row = config.model.width * sizeof(float), ranks = test_comm().size();
  const auto saved = static_cast<double>(test_comm().all_reduce(whole.bytes[0] - rows.bytes[0], Reduce::sum));
  // The whole head: each rank sends all rows but its own.
  EXPECT_GE(saved, static_cast<double>((ranks - 1) * 640 * row) - static_cast<double>(ranks * 256 * row));
  EXPECT_GT(saved, 0);
}

}  // namespace
}  // namespace nanorun
