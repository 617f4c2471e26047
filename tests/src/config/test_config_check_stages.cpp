// Rules of the stages, of the schedule around them, and of the optimizer.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "src/config/config.hpp"
#include "tests/support/deck_errors.hpp"

using namespace nanorun;

namespace {

const std::string data = "[data]\ntrain = [\"t.h5\"]\nvalidation = [\"v.h5\"]\n";
const std::string two_stages = data + R"(
[train]
steps = 110
extension_steps = 10
[window]
kind = "token"
[[stage]]
share = 0.6
[[stage]]
share = 0.4
[[stage]]
share = 0
)";

/// The message on the one rule that the overrides break; empty where they break none.
std::string rule(const std::vector<std::string>& overrides, const std::string& deck = two_stages) {
  return error_of([&] { check_config(parse_deck(deck, "d.toml", overrides), 1); }, ExitCode::usage, Scope::all_ranks);
}

}  // namespace

TEST(CheckStages, WithAndWithoutAnExtension) {
  EXPECT_EQ(rule({}), "");
  EXPECT_EQ(rule({"stage.1.share=0.2", "stage.2.share=0.2", "train.extension_steps=0"}), "");
  EXPECT_EQ(rule({"train.extension_steps=10"}, data), "");
  EXPECT_EQ(rule({"train.extension_steps=0"}),
            "override train.extension_steps=0: stage.2.share = 0 needs train.extension_steps");
  EXPECT_EQ(rule({"stage.1.share=0.2", "stage.2.share=0.2"}),
            "d.toml:7: train.extension_steps = 10 needs a last stage of its own, with share = 0; stage.2.share = 0.2");
  EXPECT_EQ(rule({"train.extension_steps=1770"}, data),
            "override train.extension_steps=1770: train.extension_steps = 1770 must be below train.steps = 1770");
}

TEST(CheckStages, SharesAddUpToOne) {
  EXPECT_EQ(rule({"stage.0.share=0.5"}),
            "d.toml:15: the shares of the stages must add up to 1; stage.0.share to stage.2.share add up to 0.9");
  EXPECT_EQ(rule({"stage.0.share=0.6000000005"}), "");
  EXPECT_NE(rule({"stage.0.share=0.600000002"}), "");
  EXPECT_EQ(rule({"stage.0.share=1", "stage.1.share=0"}),
            "override stage.1.share=0: stage.1.share must be above 0: only the last stage may be without scheduled "
            "steps");
}

TEST(CheckStages, EveryStageHasSteps) {
  EXPECT_EQ(rule({"stage.0.share=0.999", "stage.1.share=0.001"}),
            "d.toml:6: stage.1.share = 0.001 of 100 scheduled steps is none: every stage needs a step");
  EXPECT_EQ(rule({"stage.0.share=0.001", "stage.1.share=0.999"}),
            "d.toml:6: stage.0.share = 0.001 of 100 scheduled steps is none: every stage needs a step");
}

TEST(CheckStages, WeightsOfTargets) {
  EXPECT_EQ(rule({"stage.0.targets=[1, 0.5, 0.25]", "stage.0.targets_end=[1, 0, 0]"}), "");
  EXPECT_EQ(rule({"stage.0.targets=[1, 1, 1, 1]"}),
            "override stage.0.targets=[1, 1, 1, 1]: stage.0.targets has 4 weights; it needs 1 to 3");
  EXPECT_EQ(rule({"stage.0.targets=[]"}),
            "override stage.0.targets=[]: stage.0.targets has 0 weights; it needs 1 to 3");
  EXPECT_EQ(rule({"stage.0.targets_end=[1, 0.5]"}),
            "override stage.0.targets_end=[1, 0.5]: stage.0.targets_end has 2 weights, stage.0.targets has 1: it needs "
            "as many, or none");
}

TEST(CheckStages, PrefixesAndDocumentsNeedData) {
  EXPECT_EQ(rule({"stage.1.prefix=0.5"}), "override stage.1.prefix=0.5: stage.1.prefix needs data.prefix_table");
  EXPECT_EQ(rule({"stage.1.prefix_end=0.5"}),
            "override stage.1.prefix_end=0.5: stage.1.prefix_end needs data.prefix_table");
  EXPECT_EQ(rule({"stage.1.prefix=0.5", "stage.1.prefix_end=0", "data.prefix_table=vocab.bpe"}), "");
  EXPECT_EQ(rule({"stage.2.longest_document=896"}),
            "override stage.2.longest_document=896: stage.2.longest_document needs data.packing = \"documents\"");
  EXPECT_EQ(rule({"stage.2.longest_document=896", "data.packing=documents"}), "");
}

TEST(CheckStages, CandidatesAreColumnsOfTheHead) {
  EXPECT_EQ(rule({"stage.1.candidates=128"}), "");
  EXPECT_EQ(rule({"stage.1.candidates=50304"}), "");
  EXPECT_EQ(
      rule({"stage.1.candidates=100"}),
      "override stage.1.candidates=100: stage.1.candidates = 100 must be a multiple of 128, and at most the 50304 "
      "columns of the LM head");
  EXPECT_NE(rule({"stage.1.candidates=50432"}), "");
  EXPECT_EQ(rule({"stage.1.candidates=128", "model.head_bias=true", "head.precision=fp32", "model.residual=plain",
                  "model.value_path=none"}),
            "override stage.1.candidates=128: stage.1.candidates needs a LM head without model.head_bias");
}

TEST(CheckStages, AttentionEndsWithinDocumentsThatPackingLeavesLonger) {
  const std::string given = "stage.2.attention_document=896";
  EXPECT_EQ(rule({given}), "override " + given + ": stage.2.attention_document needs data.packing = \"documents\"");
  EXPECT_EQ(rule({given, "data.packing=documents"}), "");
  EXPECT_EQ(rule({given, "data.packing=documents", "stage.2.longest_document=897"}), "");
  EXPECT_EQ(rule({given, "data.packing=documents", "stage.2.longest_document=896"}),
            "override " + given +
                ": stage.2.attention_document = 896 has no effect: stage.2.longest_document = 896 cuts documents no "
                "later");
}

TEST(CheckStages, BlockWindowsAreMultiplesOfABlock) {
  EXPECT_EQ(rule({"stage.0.short_window=100"}), "");
  EXPECT_EQ(rule({"window.kind=block"}), "");
  EXPECT_EQ(rule({"window.kind=block", "stage.0.short_window=100"}),
            "override stage.0.short_window=100: stage.0.short_window = 100 must be a multiple of 128 for window.kind = "
            "\"block\"");
  EXPECT_EQ(rule({"window.kind=block", "stage.2.long_window=200"}),
            "override stage.2.long_window=200: stage.2.long_window = 200 must be a multiple of 128 for window.kind = "
            "\"block\"");
}

TEST(CheckStages, KeysWithoutEffectAreRefused) {
  for (const auto& [override_text, key, instead] :
       {std::tuple("train.length=128", "train.length", "stage.N.length"),
        {"window.first=128", "window.first", "stage.N.long_window"},
        {"window.last=128", "window.last", "stage.N.long_window"},
        {"window.quantum=256", "window.quantum", "stage.N.short_window"},
        {"window.rounding=floor", "window.rounding", "stage.N.long_window"}}) {
    EXPECT_EQ(rule({override_text}),
              fmt::format("override {}: {} has no effect beside [[stage]]; set {}", override_text, key, instead));
    EXPECT_EQ(rule({override_text}, data), "");
  }
}

TEST(CheckStages, YarnFollowsAChangeOfWindows) {
  const Strings windows = {"model.yarn=true", "stage.0.long_window=384", "stage.1.long_window=896"};
  const auto with_last = [&](int last, const Strings& further = {}) {
    Strings overrides = windows;
    overrides.push_back(fmt::format("model.yarn_last_window={}", last));
    overrides.insert(overrides.end(), further.begin(), further.end());
    return rule(overrides);
  };
  for (const int last : {0, 896, 1792, 4096}) EXPECT_EQ(with_last(last), "") << last;
  for (const int last : {100, 384, 895}) {
    EXPECT_EQ(with_last(last),
              fmt::format("override model.yarn_last_window={}: model.yarn_last_window = {} is below all windows to "
                          "which a stage changes: it must be at least 896",
                          last, last));
  }
  EXPECT_EQ(with_last(256, {"stage.2.long_window=256"}), "") << "a stage changes to a shorter one";
  EXPECT_EQ(with_last(100, {"stage.1.long_window=384", "stage.2.long_window=384"}), "") << "no stage changes it";
}

TEST(CheckStages, TheLastValidationSeesAtLeastTheLastWindow) {
  EXPECT_EQ(rule({"validation.last_long_window=1792"}), "");
  EXPECT_EQ(rule({"validation.last_long_window=1791"}),
            "override validation.last_long_window=1791: validation.last_long_window = 1791 must be at least "
            "stage.2.long_window = 1792");
  EXPECT_EQ(rule({"validation.last_long_window=1664"}, data),
            "override validation.last_long_window=1664: validation.last_long_window = 1664 must be at least "
            "window.last = 1728");
  EXPECT_EQ(rule({"validation.last_long_window=2000"}, data),
            "override validation.last_long_window=2000: validation.last_long_window = 2000 must be a multiple of 128 "
            "for window.kind = \"block\"");
}

TEST(CheckStages, YarnFollowsStages) {
  EXPECT_EQ(rule({"model.yarn=true"}), "");
  EXPECT_EQ(rule({"model.yarn=true"}, data),
            "override model.yarn=true: model.yarn needs [[stage]], whose windows it follows");
}

TEST(CheckOptimizer, HeadAndEmbeddingPartAfterAnUpdate) {
  const std::vector<std::string> tied = {"model.tied_head=true", "optimizer.adam_period=2"};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> overrides = tied;
    overrides.push_back(more);
    return rule(overrides, data);
  };
  EXPECT_EQ(with("train.untie_step=7"), "");
  EXPECT_EQ(with("train.untie_step=-1"), "");
  EXPECT_EQ(with("train.untie_step=8"),
            "override train.untie_step=8: train.untie_step = 8 must be a step at which Adam updates: one less than a "
            "multiple of optimizer.adam_period = 2");
  EXPECT_EQ(with("train.untie_step=1771"),
            "override train.untie_step=1771: train.untie_step = 1771 must be below train.steps = 1770");
  EXPECT_EQ(rule({"train.untie_step=7"}, data),
            "override train.untie_step=7: train.untie_step = 7 needs model.tied_head");
  EXPECT_EQ(rule({"train.untie_step=-1"}, data),
            "override train.untie_step=-1: train.untie_step = -1 needs model.tied_head");
  EXPECT_EQ(rule({"optimizer.adam_period=2"}, data), "");
}

TEST(CheckOptimizer, MuonAndGroups) {
  EXPECT_EQ(rule({"optimizer.muon_block_heads=3"}, data), "");
  EXPECT_EQ(rule({"optimizer.muon_block_heads=4"}, data),
            "override optimizer.muon_block_heads=4: optimizer.muon_block_heads = 4 must divide model.heads = 6");
  EXPECT_EQ(rule({"optimizer.muon_momentum_cooldown=1771"}, data),
            "override optimizer.muon_momentum_cooldown=1771: optimizer.muon_momentum_cooldown = 1771 must be at most "
            "train.steps = 1770");
  EXPECT_EQ(rule({}, data + "[[group]]\nlr = 1\n"), "d.toml:4: group.0.tensors names no tensors");
  EXPECT_EQ(rule({}, data + "[[group]]\nlr = 1\ntensors = [\"head\"]\n"), "");
}

TEST(CheckOptimizer, ASlowMomentumIsMuonsAndIsMixedInTheRun) {
  EXPECT_EQ(
      rule({"optimizer.slow_momentum=0.98", "optimizer.momentum_mix=0.5", "optimizer.momentum_mix_from=1769"}, data),
      "");
  EXPECT_EQ(rule({"optimizer.momentum_mix=0.5"}, data),
            "override optimizer.momentum_mix=0.5: optimizer.momentum_mix = 0.5 needs optimizer.slow_momentum");
  EXPECT_EQ(rule({"optimizer.momentum_mix_from=5"}, data),
            "override optimizer.momentum_mix_from=5: optimizer.momentum_mix_from = 5 needs optimizer.slow_momentum");
  EXPECT_EQ(rule({"optimizer.slow_momentum=0.98", "optimizer.momentum_mix_from=1770"}, data),
            "override optimizer.momentum_mix_from=1770: optimizer.momentum_mix_from = 1770 must be below train.steps = "
            "1770");
  EXPECT_EQ(rule({"optimizer.slow_momentum=0.98", "optimizer.matrix_rule=adam"}, data),
            "override optimizer.slow_momentum=0.98: optimizer.slow_momentum = 0.98 needs optimizer.matrix_rule = "
            "\"muon\"");
}

TEST(CheckOptimizer, APeriodOfAGroupIsAMultipleOfTheOthers) {
  const std::string tables = data + "[optimizer]\nadam_period = 2\n[[group]]\ntensors = [\"bigram\"]\nlr = 1\n";
  EXPECT_EQ(rule({"group.0.period=4", "group.0.period_from=1769"}, tables), "");
  for (const int period : {1, 2, 3}) {
    EXPECT_EQ(rule({fmt::format("group.0.period={}", period)}, tables),
              fmt::format("override group.0.period={0}: group.0.period = {0} must be a multiple of "
                          "optimizer.adam_period = 2, and longer",
                          period));
  }
  EXPECT_EQ(rule({"group.0.period_from=7"}, tables),
            "override group.0.period_from=7: group.0.period_from = 7 needs group.0.period");
  EXPECT_EQ(rule({"group.0.period=4", "group.0.period_from=1770"}, tables),
            "override group.0.period_from=1770: group.0.period_from = 1770 must be below train.steps = 1770");
}

TEST(CheckAverages, HaveTensorsStepsAndARate) {
  const auto row = [](const std::string& keys) { return rule({}, data + "[[average]]\n" + keys); };
  const std::string tensors = "tensors = [\"head\"]\n", rate = "rate = 0.1\n", from_last = "from_last = 9\n";
  EXPECT_EQ(row(tensors + rate + from_last), "");
  EXPECT_EQ(row(tensors + rate + "from_last = 1770\n"), "");
  EXPECT_EQ(row(rate + from_last), "d.toml:4: average.0.tensors names no tensors");
  EXPECT_EQ(row(tensors + from_last), "d.toml:4: average.0.rate must be above 0");
  EXPECT_EQ(row(tensors + rate), "d.toml:4: average.0.from_last = 0 must be from 1 to train.steps = 1770");
  EXPECT_EQ(row(tensors + rate + "from_last = 1771\n"),
            "d.toml:7: average.0.from_last = 1771 must be from 1 to train.steps = 1770");
  EXPECT_EQ(row(tensors + "rate = 2\n"), "d.toml:6: average.0.rate: got 2, allowed: number, from 0 to 1");
}
