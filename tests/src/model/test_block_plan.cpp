// The plans of blocks: those of record 89 layer by layer, and what holds of any model's.

#include "src/model/block_plan.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/support/record_deck.hpp"

namespace nanorun {
namespace {

ModelConfig record(int number) { return record_deck(number).model; }
ModelConfig medium18() { return input_deck("medium18").model; }

/// The layers of which something holds.
template <class Predicate>
std::vector<int> layers_with(const std::vector<BlockPlan>& plans, const Predicate& predicate) {
  std::vector<int> layers;
  for (const BlockPlan& plan : plans) {
    if (std::invoke(predicate, plan)) layers.push_back(plan.layer);
  }
  return layers;
}

using Layers = std::vector<int>;

bool own_buffer(const BlockPlan& plan) { return plan.sent_gradient == SentGradient::own; }

TEST(BlockPlan, OfRecord89SaysWhereTrainingFindsStreamsAndNorms) {
  const std::vector<BlockPlan> plans = block_plans(record(89), Mode::training);
  EXPECT_EQ(layers_with(plans, &BlockPlan::attends), Layers({0, 1, 2, 3, 4, 5, 7, 8, 9, 10}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::mudd), Layers{10});
  EXPECT_EQ(layers_with(plans, &BlockPlan::enters_last_mix), Layers{10});
  EXPECT_EQ(layers_with(plans, &BlockPlan::mixes_input), Layers({6, 10}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::input_is_tapped), Layers({0, 4, 8, 10}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::input_is_norm), Layers({1, 2, 3, 5, 7}));
  const auto made_by = [&](NormMaker maker) {
    return layers_with(plans, [=](const BlockPlan& plan) { return plan.attends && plan.attention_norm == maker; });
  };
  EXPECT_EQ(made_by(NormMaker::block), Layers{0});
  EXPECT_EQ(made_by(NormMaker::mix_below), Layers({1, 2, 3, 4, 5, 7, 8}));
  EXPECT_EQ(made_by(NormMaker::layer_below), Layers({9, 10}));
  for (const int late : {8, 9, 10}) {
    EXPECT_EQ(plans[late].attention_input, 8);
    EXPECT_EQ(plans[late].norm_owner, 8);
  }
  EXPECT_EQ(layers_with(plans, &BlockPlan::mlp_is_implied), Layers({0, 1, 2, 3, 4, 6, 7}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::attention_is_implied), Layers({0, 1, 2, 3, 4, 5, 7, 8, 9}));
}

TEST(BlockPlan, OfRecord89SaysWhichGradientsJoinWhere) {
  const std::vector<BlockPlan> plans = block_plans(record(89), Mode::training);
  EXPECT_EQ(layers_with(plans, &BlockPlan::shares_norm), Layers({8, 9, 10}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::adds_norm_gradient), Layers({8, 9}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::leaves_factors), Layers({0, 1, 2, 3, 4, 5, 7, 8, 9}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::hands_on_factor), Layers({1, 2, 3, 5, 7, 9}));
  const auto joins = [](BlockMix mix) { return [=](const BlockPlan& plan) { return plan.joins_in == mix; }; };
  EXPECT_EQ(layers_with(plans, joins(BlockMix::before)), Layers({6, 10}));
  EXPECT_EQ(layers_with(plans, joins(BlockMix::after_mlp)), Layers());
  EXPECT_EQ(layers_with(plans, &BlockPlan::clears_input_gradient), Layers());
  EXPECT_EQ(layers_with(plans, &BlockPlan::sends_to_second), Layers{10});
  EXPECT_EQ(layers_with(plans, &BlockPlan::sends_skip_gradient), Layers{6});
  EXPECT_EQ(layers_with(plans, &BlockPlan::starts_skip_gradient), Layers());
  EXPECT_EQ(layers_with(plans, own_buffer), layers_with(plans, &BlockPlan::input_is_tapped));
  ModelConfig without = record(89);
  without.mudd = false;
  const std::vector<BlockPlan> others = block_plans(without, Mode::training);
  EXPECT_EQ(layers_with(others, &BlockPlan::clears_input_gradient), Layers({4, 8}));
  EXPECT_EQ(layers_with(others, &BlockPlan::sends_to_second), Layers());
}

/// The second net reads the input of a middle layer: the injections from there on are summed before its backward pass.
TEST(BlockPlan, OfRecord89SumsInjectionsBeforeTheBackwardPassOfANet) {
  const ModelConfig config = record(89);
  const std::vector<BlockPlan> plans = block_plans(config, Mode::training);
  EXPECT_EQ(layers_with(plans, &BlockPlan::injects_second), Layers({1, 2, 3, 4, 5, 7, 8, 9}));
  EXPECT_EQ(layers_with(plans, [](const BlockPlan& plan) { return !plan.injections.empty(); }),
            Layers({config.gate_net_layer}));
  const InjectionSum& upper = plans[config.gate_net_layer].injections;
  EXPECT_EQ(upper.begin, config.gate_net_layer);
  EXPECT_EQ(upper.end, config.layers);
  EXPECT_FALSE(upper.adds_to_x0);
  EXPECT_TRUE(upper.adds_to_second) << "the MUDD mix of the last layer comes before";
  const InjectionSum last = last_injections(plans);
  EXPECT_EQ(last.begin, -1);
  EXPECT_EQ(last.end, config.gate_net_layer);
  EXPECT_TRUE(last.adds_to_x0 && last.adds_to_second);
}

TEST(BlockPlan, WithoutNetsSumsAllInjectionsAtTheEnd) {
  const ModelConfig config = record(81);
  const std::vector<BlockPlan> plans = block_plans(config, Mode::training);
  const InjectionSum last = last_injections(plans);
  EXPECT_EQ(last.begin, -1);
  EXPECT_EQ(last.end, config.layers);
  EXPECT_FALSE(last.adds_to_x0);
  EXPECT_TRUE(last.adds_to_second) << "the MUDD mix of the last layer comes before";
}

TEST(BlockPlan, OfRecord89NamesTheValueEmbeddings) {
  const std::vector<BlockPlan> plans = block_plans(record(89), Mode::training);
  Layers tables;
  for (const BlockPlan& plan : plans) tables.push_back(plan.value_table);
  EXPECT_EQ(tables, Layers({-1, 0, 1, -1, -1, -1, -1, -1, 2, 3, 4}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::gates_value_rows), Layers({1, 2, 8, 9, 10}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::keeps_value_rows), Layers{1});
  EXPECT_EQ(layers_with(plans, &BlockPlan::completes_value_table), Layers({1, 2, 8, 9, 10}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::takes_up_first_values), Layers());
  ModelConfig some_by_norm = record(89);
  some_by_norm.value_layers_gated_by_input = {2, 9};
  const std::vector<BlockPlan> mixed = block_plans(some_by_norm, Mode::training);
  EXPECT_EQ(layers_with(mixed, &BlockPlan::gates_read_rows), Layers({1, 8, 10}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::scales_values), layers_with(plans, &BlockPlan::attends));
}

/// Two layers share a table there: the lower one completes its gradient.
TEST(BlockPlan, OfRecord21AddsToTheStreamInPlace) {
  const std::vector<BlockPlan> plans = block_plans(record(21), Mode::training);
  Layers tables;
  for (const BlockPlan& plan : plans) tables.push_back(plan.value_table);
  EXPECT_EQ(tables, Layers({0, 1, 2, -1, -1, -1, -1, -1, -1, 0, 1, 2}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::completes_value_table), Layers({0, 1, 2}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::clears_row_gradient), Layers({0, 1, 2}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::input_is_tapped), Layers({1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::sends_skip_gradient), Layers({7, 8, 9, 10, 11}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::starts_skip_gradient), Layers({7, 8, 9, 10, 11}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::starts_x0_gradient), Layers{11});
  EXPECT_EQ(layers_with(plans, own_buffer), Layers());
  for (const int encoder : {1, 2, 3, 4, 5}) {
    EXPECT_EQ(plans[encoder].sent_gradient, SentGradient::output_of_skip_reader);
    EXPECT_EQ(plans[encoder].skip_reader, 12 - encoder);
    EXPECT_EQ(plans[12 - encoder].skip_input, encoder);
  }
  EXPECT_EQ(plans[6].skip_input, 6);
  EXPECT_EQ(plans[6].sent_gradient, SentGradient::none) << "its skip's gradient is part of its stream's";
  for (const BlockPlan& plan : plans) {
    EXPECT_TRUE(plan.mixes_input && plan.joins_in == BlockMix::before);
    EXPECT_EQ(plan.output, OutputBuffer::own);
    EXPECT_FALSE(plan.attention_is_implied || plan.mlp_is_implied || plan.leaves_factors || plan.norms_next);
  }
}

/// Three skips, of which the lowest source is read by the highest layer, and a backout.
TEST(BlockPlan, OfMedium18MixesBeforeAttention) {
  const std::vector<BlockPlan> plans = block_plans(medium18(), Mode::training);
  EXPECT_EQ(layers_with(plans, &BlockPlan::input_is_tapped), Layers({3, 5, 7, 12}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::sends_skip_gradient), Layers({9, 10, 11}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::starts_skip_gradient), Layers({9, 10, 11}));
  EXPECT_EQ(layers_with(plans, own_buffer), Layers({3, 5, 7, 12}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::enters_last_mix), Layers{15});
  EXPECT_EQ(layers_with(plans, &BlockPlan::completes_value_table), Layers({0, 1, 2, 3, 4}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::adds_row_gradient), Layers({0, 1, 2, 3, 4}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::gates_read_rows), Layers());
  for (const BlockPlan& plan : plans) {
    EXPECT_TRUE(plan.mixes_input && plan.joins_in == BlockMix::before && plan.adds_injections && plan.injects_second);
    EXPECT_TRUE(plan.attention_is_implied && plan.scales_values && plan.output == OutputBuffer::own);
    EXPECT_FALSE(plan.mlp_is_implied || plan.leaves_factors || plan.hands_on_factor || plan.clears_input_gradient);
    EXPECT_EQ(plan.skip, plan.layer >= 9 && plan.layer <= 11 ? plan.layer - 9 : -1);
  }
  const InjectionSum last = last_injections(plans);
  EXPECT_EQ(last.begin, -1);
  EXPECT_EQ(last.end, 16);
  EXPECT_FALSE(last.adds_to_x0 || last.adds_to_second);
}

/// The first to send a stream a gradient overwrites what is there: the backout, else the highest layer that skips to
/// it.
TEST(BlockPlan, OfSkipsFromOneLayerNamesTheFirstSender) {
  ModelConfig config = medium18();
  config.skip_from = {2, 2, 2, 8};
  config.skip_to = {3, 6, 9, 14};
  config.backout_from = 8;
  const std::vector<BlockPlan> plans = block_plans(config, Mode::training);
  EXPECT_EQ(layers_with(plans, &BlockPlan::sends_skip_gradient), Layers({6, 9, 14}));
  EXPECT_EQ(layers_with(plans, &BlockPlan::starts_skip_gradient), Layers{9});
  config.skip_from = {2};
  config.skip_to = {3};
  config.backout_from = -1;
  EXPECT_EQ(layers_with(block_plans(config, Mode::training), &BlockPlan::input_is_tapped), Layers())
      << "the skip's gradient is part of its stream's";
}

/// In evaluation each block makes its own norms, and only what others read has a buffer of its own.
TEST(BlockPlan, OfEvaluationSharesBuffers) {
  for (const int number : {13, 21, 81, 89}) {
    SCOPED_TRACE(number);
    const std::vector<BlockPlan> plans = block_plans(record(number), Mode::evaluation);
    for (const BlockPlan& plan : plans) {
      EXPECT_EQ(plan.attention_norm, NormMaker::block);
      EXPECT_FALSE(plan.norms_next || plan.input_is_norm || plan.hands_on_factor || plan.shares_norm);
      if (plan.attends) {
        EXPECT_EQ(plan.norm_owner, plan.layer);
      }
      const bool read_above = plan.layer + 1 < static_cast<int>(plans.size()) && plans[plan.layer + 1].input_is_tapped;
      EXPECT_EQ(plan.output, read_above ? OutputBuffer::own : OutputBuffer::of_all_blocks);
    }
  }
}

/// Every norm that attention reads is made once, and nobody reads a stream that is not kept.
TEST(BlockPlan, OfNeighboursAgrees) {
  for (const int number : {13, 18, 20, 21, 81, 89}) {
    SCOPED_TRACE(number);
    const std::vector<BlockPlan> plans = block_plans(record(number), Mode::training);
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const BlockPlan& plan = plans[i];
      const bool last = i + 1 == plans.size();
      EXPECT_EQ(plan.norms_next, !last && plans[i + 1].attention_norm == NormMaker::mix_below);
      EXPECT_EQ(plan.output == OutputBuffer::none, !last && plans[i + 1].input_is_norm);
      EXPECT_FALSE(plan.input_is_norm && (plan.input_is_tapped || plan.mixes_input));
      if (!plan.attends) continue;
      EXPECT_EQ(plans[plan.norm_owner].norm_owner, plan.norm_owner);
      EXPECT_NE(plans[plan.norm_owner].attention_norm, NormMaker::layer_below);
      EXPECT_EQ(plan.attention_norm == NormMaker::layer_below, plan.norm_owner != plan.layer);
    }
  }
}

}  // namespace
}  // namespace nanorun
