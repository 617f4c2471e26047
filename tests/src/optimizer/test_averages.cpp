// Averages of weights: which tensors and steps, by hand.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "src/config/schedule.hpp"
#include "tests/support/learner.hpp"
#include "tests/support/tiny_config.hpp"

namespace nanorun {
namespace {

using Strings = std::vector<std::string>;

constexpr int steps = 10;

Config averaging(std::vector<AverageConfig> averages) {
  Config config = tiny_config();
  config.train.steps = steps;
  config.train.length = config.validation.length = 128;
  config.average = std::move(averages);
  return config;
}

/// Names that the averages of row 0 cover.
Strings covered(const Config& config) {
  Strings names;
  const ParameterTable table(config.model);
  for (const Parameter& parameter : table.parameters()) {
    for (const AveragedRows& rows : averaged_rows(config, config.average[0], parameter)) names.push_back(rows.name);
  }
  return names;
}

/// A learner in double whose gradients are all one.
struct Fixture : Learner<double> {
  explicit Fixture(const Config& config) : Learner(config, test_comm(), 0, {}) { optimizer.initialise(7); }

  void step(long step) {
    ops::fill<double>({}, gradients.span(), 1);
    for (int layer = config.model.layers; layer >= -1; --layer) optimizer.start_reduce_scatter(trace, layer, step);
    optimizer.step(trace, step);
  }
  std::vector<double> values(const Parameter& parameter, std::size_t first = 0) const {
    const std::size_t begin = parameter.offset + first, end = parameter.offset + parameter.size();
    if (begin < table.tensor_size()) return {&weights.tensors()[begin], &weights.tensors()[0] + end};
    return {&weights.scalars()[begin - table.tensor_size()], &weights.scalars()[0] + (end - table.tensor_size())};
  }

  Trace trace = untraced(test_comm());
};

TEST(Averages, CoverTensorsAndMatricesByName) {
  EXPECT_EQ(covered(averaging({{{"head", "block.1.*_mix"}}})),
            (Strings{"head", "block.1.residual_mix", "block.1.value_mix"}));
  EXPECT_EQ(covered(averaging({{{"block.2.qkv.v", "block.2.qkv.k", "block.1.qkv"}}})),
            (Strings{"block.2.qkv.k", "block.2.qkv.v", "block.1.qkv"}));
  Config config = averaging({{{"*"}}});
  EXPECT_EQ(covered(config).size(), ParameterTable(config.model).parameters().size());
  config.model.bigram_rows = 20;
  config.model.bigram_sign_rows = 5;
  EXPECT_EQ(covered(config).size(), ParameterTable(config.model).parameters().size() - 1) << "no fixed tensors";
}

TEST(Averages, HaveTheEmbeddingOfATiedHeadWithTheHead) {
  Config config = averaging({{{"head"}}});
  config.model.tied_head = true;
  EXPECT_EQ(covered(config), (Strings{"head", "embedding"}));
  config.train.untie_step = 3;
  EXPECT_EQ(covered(config), Strings{"head"});
}

TEST(Averages, OfRowsAreThoseOfTheMatrix) {
  const Config config = averaging({{{"*.qkv.v"}}});
  const ParameterTable table(config.model);
  const Parameter& qkv = table.find("block.0.qkv");
  const auto width = static_cast<std::uint64_t>(config.model.width);
  const auto rows_of = [&](std::uint64_t first, std::uint64_t count) {
    return averaged_rows(config, config.average[0], OwnedRows{&qkv, 3 * width, width, first, count, 1000}).at(0);
  };
  const AveragedRows whole = rows_of(0, 3 * width), last = rows_of(2 * width, width), none = rows_of(0, 2 * width);
  EXPECT_EQ(whole.first, 2 * width * width);
  EXPECT_EQ(whole.rows.offset, 1000 + 2 * width * width);
  EXPECT_EQ(last.first, 0u);
  for (const AveragedRows& rows : {whole, last, none}) {
    EXPECT_EQ(rows.name, "block.0.qkv.v");
    EXPECT_EQ(rows.rows.total_rows, width);
    EXPECT_EQ(rows.rows.first_row, 0u);
  }
  EXPECT_EQ(whole.rows.row_count, width);
  EXPECT_EQ(last.rows.row_count, width);
  EXPECT_EQ(none.rows.row_count, 0u);
}

TEST(Averages, ThatCoverNothingAreTold) {
  const Config config = averaging({{{"head", "block.9.*"}}, {{"heads"}}});
  const Strings expected = {"warning: average.0.tensors: no trained tensor of the model is called block.9.*",
                            "warning: average.1.tensors: no trained tensor of the model is called heads"};
  EXPECT_EQ(average_warnings(config, ParameterTable(config.model)), expected);
}

TEST(Averages, TakeTheirFirstSampleWholeAndTheLastStep) {
  const Config config = averaging({{{"head"}, 6, 4, 0.5, 1}});
  std::vector<double> rates;
  for (long step = 0; step < steps; ++step) rates.push_back(average_rate(config, config.average[0], step));
  EXPECT_EQ(rates, (std::vector<double>{0, 0, 0, 0, 1, 0, 0, 0, 0.5, 0.5}));
  EXPECT_FALSE(average_begun(config, config.average[0], 4));
  EXPECT_TRUE(average_begun(config, config.average[0], 5));
}

/// Two tensors over ten steps: the values of V of layer 1 every other step, the scalars in every step, with another
/// average of both behind the first.
TEST(Averages, AreThoseByHand) {
  const std::vector<AverageConfig> rows = {{{"block.1.qkv.v"}, 6, 2, 0.25, 1},
                                           {{"block.1.residual_mix", "block.1.qkv.v"}, 4, 1, 0.5, 0.65}};
  Fixture f(averaging(rows));
  const Parameter &qkv = f.table.find("block.1.qkv"), &mix = f.table.find("block.1.residual_mix");
  const std::size_t first = 2 * qkv.size() / 3;
  std::vector<std::vector<double>> v, scalars;  // after each step
  for (long step = 0; step < steps; ++step) {
    f.step(step);
    v.push_back(f.values(qkv, first));
    scalars.push_back(f.values(mix));
  }
  const std::vector<double> queries = f.values(qkv);
  f.optimizer.apply_averages();
  const std::vector<double> final_v = f.values(qkv, first), final_scalars = f.values(mix);
  for (std::size_t i = 0; i < final_v.size(); ++i) {
    double slow = v[4][i];
    for (const int step : {6, 8, 9}) slow += 0.25 * (v[step][i] - slow);
    double fast = v[6][i];
    for (const int step : {7, 8, 9}) fast += 0.5 * (v[step][i] - fast);
    ASSERT_NEAR(final_v[i], 0.35 * slow + 0.65 * fast, 1e-15) << i;
  }
  for (std::size_t i = 0; i < final_scalars.size(); ++i) {
    double fast = scalars[6][i];
    for (const int step : {7, 8, 9}) fast += 0.5 * (scalars[step][i] - fast);
    ASSERT_NEAR(final_scalars[i], 0.35 * scalars[9][i] + 0.65 * fast, 1e-15) << i;
  }
  EXPECT_NE(final_v, v.back());
  const std::vector<double> others = f.values(qkv);
  EXPECT_TRUE(std::equal(others.begin(), others.begin() + first, queries.begin())) << "Q and K have no average";
  f.optimizer.take_back_averages();
  EXPECT_EQ(f.values(qkv, first), v.back());
  EXPECT_EQ(f.values(mix), scalars.back());
}

/// Also in the tables whose rows wait for their updates, and with a second learner that goes on in the window.
TEST(Averages, GoOnFromTheirSlabs) {
  const Config config = averaging({{{"*"}, 7, 3, 0.25, 0.65}});
  Fixture whole(config), first(config), second(config);
  for (long step = 0; step < steps; ++step) whole.step(step);
  for (long step = 0; step < 5; ++step) first.step(step);
  std::map<std::string, std::span<double>> from;
  for (const Slab<double>& slab : first.optimizer.slabs()) from[slab.dataset] = slab.data;
  EXPECT_TRUE(from.contains("/average/0/embedding"));
  for (const Slab<double>& slab : second.optimizer.slabs()) std::ranges::copy(from.at(slab.dataset), slab.data.begin());
  second.optimizer.restore();
  for (long step = 5; step < steps; ++step) second.step(step);
  for (Fixture* const f : {&whole, &second}) f->optimizer.apply_averages();
  for (const Parameter& parameter : whole.table.parameters())
    EXPECT_EQ(whole.values(parameter), second.values(parameter)) << parameter.name;
}

/// The average, and on hosts the copy of the masters while the last validation reads the averaged weights; the copy is
/// of whole buckets.
TEST(Averages, TakeMemoryThatIsPlanned) {
  const Config with = averaging({{{"head", "block.1.qkv.v"}, 5, 1, 0.5, 1}}), without = averaging({});
  const ParameterTable table(with.model);
  const auto bytes = [&](const Config& config) {
    return static_cast<double>(Optimizer<Real>::state_bytes(config, table, NodeLayout(), 0));
  };
  const std::size_t head = table.find("head").size(), qkv = table.find("block.1.qkv").size();
  std::size_t kept = head;
  for (const Bucket& bucket : table.buckets()) {
    const std::size_t offset = table.find("block.1.qkv").offset;
    if (bucket.offset <= offset && offset < bucket.offset + bucket.size()) kept += bucket.size();
  }
  const auto expected = static_cast<double>(head + qkv / 3 + (ops::on_host ? kept : 0)) * sizeof(float);
  EXPECT_NEAR(bytes(with) - bytes(without), expected, 1024);  // tensors are aligned
}

/// Where a run goes on with a longer window, the restored weights are the first sample.
TEST(Averages, MayBeginWithTheRestoredWeights) {
  Fixture f(averaging({{{"head"}, 8, 1, 0.25, 1}}));
  for (const Slab<double>& slab : f.optimizer.slabs()) {
    if (slab.dataset == "/average/0/head") std::ranges::fill(slab.data, 1e9);
  }
  f.optimizer.restore({.averages = {true}});
  const Parameter& head = f.table.find("head");
  const std::vector<double> start = f.values(head);
  f.step(steps - 1);
  const std::vector<double> last = f.values(head);
  f.optimizer.apply_averages();
  const std::vector<double> blended = f.values(head);
  for (std::size_t i = 0; i < blended.size(); ++i)
    ASSERT_NEAR(blended[i], start[i] + 0.25 * (last[i] - start[i]), 1e-15) << i;
}

}  // namespace
}  // namespace nanorun
