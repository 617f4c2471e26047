#include "src/model/fp8_weights.hpp"

#include <gtest/gtest.h>

#include "src/model/model.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/model_fixture.hpp"
#include "tests/support/record89_mechanisms.hpp"

namespace nanorun {
namespace {

constexpr Fp8Config both_passes{
    Fp8Forward::e4m3, Fp8Gradient::e5m2, Fp8Scales::fixed, Fp8WeightScales::exact, 0, 1.0 / 64, 1.03};
constexpr Fp8Config delayed_weights{
    Fp8Forward::e4m3, Fp8Gradient::e4m3, Fp8Scales::delayed, Fp8WeightScales::delayed, 0, 1.0 / 448, 1.25};

Config quantised() {
  Config config = small_config();
  config.model.layers_without_attention = {3};
  config.fp8 = {both_passes, delayed_weights};
  return config;
}

/// What a model makes its weights in 8 bits of.
struct Parts {
  explicit Parts(const Config& config) : config(config) { std::ranges::fill(weights.tensors(), 0.5); }
  /// As the model's forward pass does.
  void prepare() {
    for (int layer = 0; layer < config.model.layers; ++layer) codes.prepare({}, layer);
  }
  void write(const std::string& name, double value) {
    const Parameter& p = table.find(name);
    for (std::size_t i = 0; i < p.size(); ++i) weights.tensors()[p.offset + i] = value * (i % 2 == 0 ? 1 : -0.5);
  }
  void note_written(const std::string& name) {
    const std::size_t offset = table.find(name).offset;
    for (std::size_t b = 0; b < table.buckets().size(); ++b) {
      const Bucket& bucket = table.buckets()[b];
      if (bucket.offset <= offset && offset < bucket.offset + bucket.size()) weights.note_written(b);
    }
  }

  Config config;
  ParameterTable table{config.model};
  Weights<double> weights{table};
  Parameters<double> parameters{{table, weights.tensors().data(), weights.scalars().data()}, {}};
  Fp8ProductScales<double> scales{config, Fp8Product::mlp, Mode::training, {}};
  Fp8Weights<double> codes{config, Fp8Product::mlp, parameters, weights, scales};
};

TEST(Fp8Weights, AreMadeOnceAStepAndWhenTheWeightsAreWritten) {
  Parts parts(quantised());
  parts.write("block.0.mlp_in", 1);
  parts.scales.begin_sequence(0);
  EXPECT_THROW(static_cast<void>(parts.codes.of(0)), Error) << "before prepare()";
  parts.prepare();
  const double* const codes = parts.codes.of(0).w_in.data;
  const double* const codes_t = parts.codes.of(0).w_in_t.data;
  EXPECT_EQ(codes[0], 448);
  EXPECT_EQ(codes[1], -224);
  const int rows = 4 * parts.config.model.width;
  EXPECT_EQ(codes_t[rows], -224) << "the transpose";

  // Other weights with the same largest magnitude. No one has told of them: a second sequence takes what is there.
  parts.write("block.0.mlp_in", -1);
  parts.scales.begin_sequence(0);
  parts.prepare();
  EXPECT_EQ(codes[0], 448);
  parts.note_written("block.0.qkv");
  EXPECT_NO_THROW(static_cast<void>(parts.codes.of(0))) << "matrices of another product";
  parts.note_written("block.0.mlp_in");
  EXPECT_THROW(static_cast<void>(parts.codes.of(0)), Error) << "stale";
  parts.prepare();
  EXPECT_EQ(parts.codes.of(0).w_in.data[0], -448);
  EXPECT_EQ(codes_t[rows], 224);

  // Smaller ones: the largest magnitude is not that of the weights before.
  parts.write("block.0.mlp_in", 0.25);
  parts.note_written("block.0.mlp_in");
  parts.prepare();
  EXPECT_EQ(codes[0], 448);

  // A step without an update: the scales may be others.
  parts.scales.begin_sequence(1);
  EXPECT_THROW(static_cast<void>(parts.codes.of(0)), Error) << "of the step before";
  parts.prepare();
  EXPECT_EQ(parts.codes.of(0).w_in.data[0], 448);
  parts.scales.restore(1, {});
  parts.scales.begin_sequence(1);
  EXPECT_THROW(static_cast<void>(parts.codes.of(0)), Error) << "the scales have begun anew";
}

std::vector<double> gradients_of(Fixture& f) { return {f.gradients.span().begin(), f.gradients.span().end()}; }

/// A model whose weights are replaced within a step trains as one that had them from the beginning.
TEST(Fp8Weights, OfAModelAreNeverStale) {
  Config record89 = small_config();
  add_small_record89(record89);
  for (Config config : {quantised(), record89}) {
    config.fp8 = {both_passes, delayed_weights};
    Fixture moved(config), fresh(config);
    moved.forward_backward(128);
    for (Fixture* f : {&moved, &fresh}) f->disturb();
    EXPECT_EQ(moved.forward_backward(128), fresh.forward_backward(128));
    EXPECT_EQ(gradients_of(moved), gradients_of(fresh));
    for (Fixture* f : {&moved, &fresh}) f->weight(f->table.find("block.2.mlp_out"), 5) = 0.125;
    EXPECT_EQ(moved.forward_backward(128), fresh.forward_backward(128));
    EXPECT_EQ(gradients_of(moved), gradients_of(fresh));
  }
}

/// All that changes matrices tells the weights so; what changes tables or scalars alone does not.
TEST(Fp8Weights, EveryChangeOfMatricesIsNoted) {
  Config config = quantised();
  config.average = {{.tensors = {"*"}, .from_last = 2, .every = 1, .rate = 0.5, .blend = 0.5}};
  config.train.steps = 2;
  for (const MatrixRule rule : {MatrixRule::muon, MatrixRule::adam}) {
    config.optimizer.matrix_rule = rule;
    Fixture f(config);
    std::vector<const Parameter*> matrices;
    for (const Parameter& p : f.table.parameters()) {
      if (p.group == Group::matrix) matrices.push_back(&p);
    }
    const auto values = [&] { return std::vector<double>(f.weights.tensors().begin(), f.weights.tensors().end()); };
    const auto written = [&] {
      std::vector<long> times;
      for (const Parameter* p : matrices) times.push_back(f.weights.written(p->offset));
      return times;
    };
    std::vector<long> before = written();
    std::vector<double> weights = values();
    const auto expect_noted = [&](const char* by) {
      const std::vector<long> now = written();
      for (std::size_t i = 0; i < now.size(); ++i) EXPECT_GT(now[i], before[i]) << by << ": " << matrices[i]->name;
      EXPECT_NE(values(), weights) << by;
      before = now;
      weights = values();
    };
    f.disturb();
    expect_noted("the test");
    f.optimizer.initialise(8);
    expect_noted("initialise");
    for (long step = 0; step < 2; ++step) {
      f.optimizer.begin_step(step);
      f.forward_backward(128);
      EXPECT_EQ(written(), before) << "a pass writes nothing";
      const std::size_t lowest = f.table.find("block.0.mlp_in").offset;
      const long lowest_before = f.weights.written(lowest);
      for (int layer = config.model.layers; layer >= -1; --layer) {
        f.optimizer.start_reduce_scatter(f.trace, layer, step);
        if (layer == 1) {
          EXPECT_EQ(f.weights.written(lowest), lowest_before) << "its codes are still read";
        }
      }
      if (rule == MatrixRule::muon) {
        EXPECT_EQ(written(), before) << "tables alone are updated in a backward pass";
      }
      f.optimizer.step(f.trace, step);
      expect_noted("step");
    }
    auto slabs = f.optimizer.slabs();
    f.optimizer.apply_averages();
    expect_noted("averages");
    f.optimizer.take_back_averages();
    for (auto& slab : slabs) {
      for (double& value : slab.data) value *= 0.5;
    }
    f.optimizer.restore();
    expect_noted("restore");
  }
}

TEST(Fp8Weights, BytesAreThoseOfTheLayoutsThatPassesRead) {
  Config config = quantised();
  const std::size_t d = config.model.width, layers = config.model.layers, size = sizeof(double);
  const auto mlp = [&] { return Fp8Weights<double>::bytes(config, Fp8Product::mlp); };
  const auto qkv = [&] { return Fp8Weights<double>::bytes(config, Fp8Product::qkv); };
  EXPECT_EQ(mlp(), layers * 4 * 4 * d * d * size);
  EXPECT_EQ(qkv(), (layers - 1) * 2 * 3 * d * d * size);
  const std::size_t both = Model<double>::memory_bytes(config);
  config.fp8.mlp.gradient = config.fp8.qkv.gradient = Fp8Gradient::working;
  EXPECT_EQ(mlp(), layers * 2 * 4 * d * d * size);
  EXPECT_EQ(qkv(), (layers - 1) * 3 * d * d * size);
  const std::size_t idle = Model<double>::idle_bytes(config);
  EXPECT_GE(Model<double>::memory_bytes(config), idle + mlp() + qkv());
  EXPECT_GT(both, idle);
  config.fp8 = {};
  EXPECT_EQ(mlp() + qkv(), 0u);
  config.train.mlp_precision = MlpPrecision::fp8;
  EXPECT_EQ(mlp(), layers * 2 * 4 * d * d * size);
}

}  // namespace
}  // namespace nanorun
