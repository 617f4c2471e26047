// Training passes whose softmax covers a part of the vocabulary.

#include "src/model/sampled_lm_head.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/model/flops.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "tests/support/model_fixture.hpp"

namespace nanorun {
namespace {

/// 640 columns, of which a sequence's targets are less than 200.
Config sampled_config(int candidates, bool tied = false) {
  Config config = small_config();
  config.model.vocabulary = 600;
  config.model.layers = 2;
  config.model.value_embeddings = 1;
  config.model.tied_head = tied;
  config.window.layers = "L";
  config.train.sequences = 3;
  config.stage.resize(1);
  StageConfig& stage = config.stage[0];
  stage.share = 1;
  stage.length = config.train.length;
  stage.short_window = stage.long_window = 128;
  stage.prefix = 0.25;
  stage.candidates = candidates;
  return config;
}

struct SampledFixture : Fixture {
  explicit SampledFixture(const Config& config) : Fixture(config) {
    std::vector<std::int32_t> prefixes(config.model.vocabulary, -1);
    for (int token = 0; token < config.model.vocabulary; ++token) {
      if (token % 3 > 0) prefixes[token] = 601 * token % 599;
    }
    model.set_prefixes(prefixes);
    disturb();
  }

  /// Of a sequence of step 0; the mean loss of its tokens.
  double pass(int sequence = 0, bool accumulate = false) {
    const DeviceSequence fed =
        model.upload(trace, Sequence::of(tokens), windows_at(config, 0), candidate_draw(config, 0, sequence));
    candidates.assign(fed.candidates.begin(), fed.candidates.end());
    model.forward_backward(trace, fed, 0, {.matrices = accumulate, .others = accumulate});
    model.loss().collect({});
    return model.loss().value() / config.stage[0].length;
  }

  std::vector<std::int32_t> candidates;
};

std::vector<double> all_gradients(const SampledFixture& f) {
  return {f.gradients.span().begin(), f.gradients.span().end()};
}

/// Bit for bit, also where a second sequence adds to the gradients.
TEST(SampledLmHead, OverAllColumnsIsTheFullHead) {
  for (const LmHeadChoice precision : {LmHeadChoice::fp32, LmHeadChoice::fp8}) {
    Config config = sampled_config(0);
    config.head.precision = precision;
    SampledFixture full(config);
    config.stage[0].candidates = 640;
    SampledFixture sampled(config);
    for (const bool accumulate : {false, true}) {
      EXPECT_EQ(sampled.pass(0, accumulate), full.pass(0, accumulate));
      EXPECT_EQ(sampled.candidates.size(), 640u);
      EXPECT_TRUE(full.candidates.empty());
      EXPECT_EQ(all_gradients(sampled), all_gradients(full));
    }
  }
}

TEST(SampledLmHead, GradientsMatchFiniteDifferences) {
  for (const bool tied : {false, true}) {
    SampledFixture f(sampled_config(256, tied));
    f.pass();
    const std::vector<double> gradients = all_gradients(f);
    for (const Parameter& p : f.table.parameters()) {
      if (p.group == Group::fixed) continue;
      const auto gradient = [&](std::size_t i) { return gradients[f.table.gradient_at(p.offset) + i]; };
      double scale = 0;
      for (std::size_t i = 0; i < p.size(); ++i) scale = std::max(scale, std::abs(gradient(i)));
      EXPECT_GT(scale, 0) << p.name;
      for (std::size_t i = 0; i < p.size(); i += std::max<std::size_t>(1, p.size() / 4)) {
        double& w = f.weight(p, i);
        const double kept = w, h = 1e-5;
        w = kept + h;
        const double above = f.pass();
        w = kept - h;
        const double below = f.pass();
        w = kept;
        EXPECT_NEAR(gradient(i), (above - below) / (2 * h), 1e-6 * scale + 3e-10) << p.name << "[" << i << "]";
      }
    }
  }
}

TEST(SampledLmHead, GivesCandidatesAloneAGradient) {
  SampledFixture f(sampled_config(256));
  const Parameter& head = f.table.find("head");
  f.pass();
  const std::vector<std::int32_t> first = f.candidates;
  EXPECT_TRUE(std::ranges::is_sorted(first));
  const auto rows_with_gradient = [&] {
    std::vector<std::int32_t> rows;
    for (int v = 0; v < 640; ++v) {
      for (int j = 0; j < f.config.model.width; ++j) {
        if (f.gradient(head, static_cast<std::size_t>(v) * f.config.model.width + j) == 0) continue;
        rows.push_back(v);
        break;
      }
    }
    return rows;
  };
  EXPECT_EQ(rows_with_gradient(), first);
  f.pass(1, true);
  EXPECT_NE(f.candidates, first) << "another sequence has others";
  std::vector<std::int32_t> both;
  std::ranges::set_union(first, f.candidates, std::back_inserter(both));
  EXPECT_EQ(rows_with_gradient(), both);
  f.pass(1);
  EXPECT_EQ(rows_with_gradient(), f.candidates) << "gradients of the sequences before are replaced";
}

TEST(SampledLmHead, CountsTheWorkAndMemoryOfCandidates) {
  const Config full = sampled_config(0), sampled = sampled_config(128);
  const ParameterTable table = parameter_table(full, 1);
  const double length = full.stage[0].length, fewer = 6.0 * (640 - 128) * full.model.width * length;
  EXPECT_EQ(Flops(full, table).per_sequence(0) - Flops(sampled, table).per_sequence(0), fewer);
  EXPECT_EQ(Flops(full, table).per_sequence_6nd(0) - Flops(sampled, table).per_sequence_6nd(0), fewer);
  EXPECT_LT(SampledLmHead<float>::training_workspace(sampled, full.stage[0].length),
            SampledLmHead<float>::training_workspace(full, full.stage[0].length) / 3);
}

}  // namespace
}  // namespace nanorun
