// Rules of the layers.

#include "src/config/config.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "tests/support/deck_errors.hpp"

using namespace nanorun;

namespace {

// Six layers with everything that a scaled residual stream can have.
const char* const model = R"(
[model]
width = 64
heads = 4
head_dim = 16
layers = 6
residual = "scaled"
value_path = "gated_embeddings"
value_layers = [1, 5]
layers_without_attention = [3]
smear = true
bigram_rows = 100
bigram_sign_rows = 8
skip_from = 1
skip_to = 3
attention_source = 3
paired_layers = [0, 4]
xsa_layers = [1]
gated_layers = [2, 5]
key_offset_layers = [2]
composed_layers = [5]
gate_nets = true
gate_net_layer = 2
mudd = true
[window]
layers = "SSLSSL"
)";

/// The message on the one rule that the overrides break, without its place; empty where they break none.
std::string rule(const std::vector<std::string>& overrides, const std::string& deck = model) {
  const std::string error = error_of([&] { check_model(parse_deck(deck, "d.toml", overrides)); }, ExitCode::usage);
  if (error.empty()) return error;
  const std::size_t end = std::min(error.find(": model."), error.find(": train."));
  EXPECT_TRUE(error.starts_with("override ") || error.starts_with("d.toml:")) << error;
  return end == std::string::npos ? error : error.substr(end + 2);
}

/// With the U-net of the older records.
std::string unet_rule(const std::vector<std::string>& overrides) { return rule(overrides, ""); }

}  // namespace

TEST(CheckLayers, TheCpuBuildTakesEveryMechanism) {
  if (computes_in_fp32) {
    EXPECT_EQ(rule({}), "");
  } else {
    EXPECT_NE(usage_error_of([] {
                check_model(parse_deck(model, "d.toml", {}));
              }).find("model.residual = \"scaled\" runs in the CPU build only"),
              std::string::npos);
  }
}

class CheckLayersOnCpus : public testing::Test {
 protected:
  void SetUp() override {
    if (!computes_in_fp32) GTEST_SKIP() << "this build refuses the model";
  }
};

TEST_F(CheckLayersOnCpus, MechanismsStandAlone) {
  const std::string plain =
      "[model]\nwidth = 64\nheads = 4\nhead_dim = 16\nlayers = 5\nresidual = \"scaled\"\nvalue_path = \"none\"\n"
      "layers_without_attention = [3]\n";
  for (const std::vector<std::string>& overrides : {std::vector<std::string>{},
                                                    {"model.smear=true"},
                                                    {"model.bigram_rows=2"},
                                                    {"model.bigram_rows=2", "model.bigram_columns=7"},
                                                    {"model.skip_from=0", "model.skip_to=3"},
                                                    {"model.skip_gate=true", "model.skip_from=0", "model.skip_to=3"},
                                                    {"model.attention_source=0"},
                                                    {"model.paired_layers=4", "window.layers=S"},
                                                    {"model.xsa_layers=0"},
                                                    {"model.gated_layers=0"},
                                                    {"model.key_offset_layers=0"},
                                                    {"model.gate_nets=true"},
                                                    {"model.tied_head=true"},
                                                    {"model.value_path=gated_embeddings", "model.value_layers=[0, 4]"},
                                                    {"model.gate_nets=true", "model.composed_layers=0"}}) {
    EXPECT_EQ(rule(overrides, plain), "") << fmt::format("{}", overrides.empty() ? "" : overrides[0]);
  }
}

TEST_F(CheckLayersOnCpus, ListsNameLayersWithAttentionOnce) {
  for (const char* list : {"value_layers", "paired_layers", "xsa_layers", "gated_layers", "key_offset_layers"}) {
    const std::string key = fmt::format("model.{}", list);
    const auto error = [&](const char* layers) {
      std::vector<std::string> overrides = {fmt::format("{}={}", key, layers), "window.layers=S", "model.mudd=false"};
      if (key != "model.paired_layers") overrides.push_back("model.paired_layers=[]");
      if (key == "model.paired_layers") {
        overrides.insert(overrides.end(),
                         {"model.xsa_layers=[]", "model.key_offset_layers=[]", "model.composed_layers=[]"});
      }
      return rule(overrides);
    };
    EXPECT_EQ(error("[1, 5]"), "");
    EXPECT_EQ(error("[1, 6]"), key + " names layer 6; layers are 0 to 5");
    EXPECT_EQ(error("[1, 1]"), key + " names layer 1 twice");
    EXPECT_EQ(error("[1, 3]"), key + " names layer 3, which model.layers_without_attention excludes");
  }
  EXPECT_EQ(rule({"model.value_layers=[2, 1, 5]"}), "model.value_layers must ascend");
}

TEST_F(CheckLayersOnCpus, RecomputedLayersExistAndSayWhatIsRecomputed) {
  for (const char* kind : {"mlp", "block"}) {
    const auto error = [&](const char* layers) {
      return rule({fmt::format("train.recompute={}", kind), fmt::format("train.recompute_layers={}", layers)});
    };
    EXPECT_EQ(error("[3, 1]"), "");
    EXPECT_EQ(error("[1, 6]"), "train.recompute_layers names layer 6; layers are 0 to 5");
    EXPECT_EQ(error("[1, 1]"), "train.recompute_layers names layer 1 twice");
  }
  EXPECT_EQ(rule({"train.recompute_layers=1"}), "train.recompute_layers needs train.recompute = \"mlp\" or \"block\"");
}

TEST_F(CheckLayersOnCpus, BigramsNeedTheFirstLayersAttention) {
  EXPECT_EQ(rule({"model.layers_without_attention=[0, 3]", "model.paired_layers=[]"}),
            "model.bigram_rows needs attention on layer 0, whose factor of the bigram embeddings the first mix takes; "
            "model.layers_without_attention excludes it");
  EXPECT_EQ(rule({"model.layers_without_attention=[0, 3]", "model.paired_layers=[]", "model.bigram_rows=0",
                  "model.bigram_sign_rows=0"}),
            "");
}

TEST(CheckLayers, PartsOfStreamsNeedTheirKind) {
  const std::string scaled = "\"scaled\"", before = "\"before\"", either = scaled + " or " + before;
  for (const auto& [override_text, key, kinds] : {std::tuple("model.smear=true", "model.smear", either),
                                                  {"model.bigram_rows=100", "model.bigram_rows", either},
                                                  {"model.attention_source=3", "model.attention_source", scaled},
                                                  {"model.xsa_layers=1", "model.xsa_layers", either},
                                                  {"model.gated_layers=1", "model.gated_layers", either},
                                                  {"model.key_offset_layers=1", "model.key_offset_layers", either},
                                                  {"model.gate_nets=true", "model.gate_nets", scaled},
                                                  {"model.second_embedding=true", "model.second_embedding", before},
                                                  {"model.backout_from=3", "model.backout_from", before}}) {
    EXPECT_EQ(unet_rule({override_text}), fmt::format("{} needs model.residual = {}", key, kinds));
  }
  EXPECT_EQ(unet_rule({"model.paired_layers=1", "window.layers=S"}),
            "model.paired_layers needs model.residual = " + either);
  EXPECT_EQ(unet_rule({"model.skip_from=1", "model.skip_to=7"}), "model.skip_from needs model.residual = " + either);
  EXPECT_EQ(unet_rule({"model.value_path=gated_embeddings", "model.value_layers=1"}),
            "model.value_path = \"gated_embeddings\" needs model.residual = " + either);
  EXPECT_EQ(unet_rule({"model.layers=7"}), "model.layers = 7 must be even for model.residual = \"unet\"");
}

TEST_F(CheckLayersOnCpus, ValuesOfAScaledStream) {
  for (const char* path : {"first", "embeddings"}) {
    EXPECT_EQ(rule({fmt::format("model.value_path={}", path), "model.value_layers=[]", "model.mudd=false"}),
              "model.residual = \"scaled\" needs model.value_path = \"none\" or \"gated_embeddings\"");
  }
  EXPECT_EQ(rule({"model.value_layers=[]", "model.mudd=false"}),
            "model.value_path = \"gated_embeddings\" needs layers in model.value_layers");
  EXPECT_EQ(rule({"model.value_path=none"}), "model.value_layers needs model.value_path = \"gated_embeddings\"");
}

TEST_F(CheckLayersOnCpus, GatesOfValuesByInputAreThoseOfValueLayers) {
  EXPECT_EQ(rule({"model.value_layers_gated_by_input=1"}), "");
  EXPECT_EQ(rule({"model.value_layers_gated_by_input=[1, 5]", "model.mudd=false"}), "");
  EXPECT_EQ(rule({"model.value_layers_gated_by_input=2"}),
            "model.value_layers_gated_by_input names layer 2, which model.value_layers does not name");
  EXPECT_EQ(rule({"model.value_layers_gated_by_input=5"}),
            "model.value_layers_gated_by_input names layer 5, the last, whose gates model.mudd gives");
  EXPECT_EQ(rule({"model.value_layers_gated_by_input=6"}),
            "model.value_layers_gated_by_input names layer 6; layers are 0 to 5");
  EXPECT_EQ(unet_rule({"model.value_layers_gated_by_input=1"}),
            "model.value_layers_gated_by_input names layer 1, which model.value_layers does not name");
}

TEST_F(CheckLayersOnCpus, TheSkipEntersALaterLayerWithoutAttention) {
  EXPECT_EQ(rule({"model.skip_to=2", "model.layers_without_attention=[]"}),
            "model.skip_to = 2 must be one of model.layers_without_attention for model.residual = \"scaled\"");
  EXPECT_EQ(rule({"model.skip_from=3", "model.attention_source=2"}),
            "model.skip_to = 3 must be a layer above model.skip_from = 3");
  EXPECT_EQ(rule({"model.skip_from=-1", "model.mudd=false"}),
            "model.skip_from names 0 layers, model.skip_to 1: each skip needs both");
  EXPECT_EQ(rule({"model.skip_from=[1,1]", "model.skip_to=[3,4]", "model.layers_without_attention=[3,4]",
                  "model.paired_layers=0"}),
            "model.skip_to names 2 layers; model.residual = \"scaled\" has one skip at most");
  EXPECT_EQ(rule({"model.skip_from=-1", "model.skip_to=-1", "model.mudd=false"}), "");
  const std::vector<std::string> gated = {"model.skip_gate=true", "model.gate_nets=false", "model.composed_layers=[]"};
  EXPECT_EQ(rule(gated), "");
  EXPECT_EQ(rule({"model.skip_gate=true"}), "model.skip_gate and model.gate_nets both gate the skip: leave one out");
  std::vector<std::string> without_skip = gated;
  without_skip.insert(without_skip.end(), {"model.skip_from=-1", "model.skip_to=-1", "model.mudd=false"});
  EXPECT_EQ(rule(without_skip), "model.skip_gate needs model.skip_from");
  EXPECT_EQ(unet_rule({"model.skip_gate=true"}), "model.skip_gate needs model.skip_from");
}

TEST_F(CheckLayersOnCpus, StreamsAndTables) {
  EXPECT_EQ(rule({"model.attention_source=5"}),
            "model.attention_source = 5 must be below the last of model.layers = 6");
  EXPECT_EQ(rule({"model.bigram_rows=0"}), "model.bigram_sign_rows needs model.bigram_rows");
  EXPECT_EQ(rule({"model.bigram_rows=0", "model.bigram_sign_rows=0", "model.bigram_columns=8"}),
            "model.bigram_columns needs model.bigram_rows");
  EXPECT_EQ(rule({"model.bigram_columns=64"}), "");
  EXPECT_EQ(rule({"model.bigram_columns=65"}), "model.bigram_columns = 65 must be at most model.width = 64");
  EXPECT_EQ(rule({"model.bigram_rows=16777216", "model.width=768", "model.head_dim=192"}),
            "model.bigram_rows * model.width = 16777216 * 768 must be below 2^31");
}

/// Six layers with everything that a stream with mixes before attention can have.
TEST_F(CheckLayersOnCpus, StreamsWithMixesBeforeAttention) {
  const std::string medium = R"(
[model]
width = 64
heads = 4
head_dim = 16
layers = 6
residual = "before"
second_embedding = true
value_path = "gated_embeddings"
value_layers = [0, 1, 4, 5]
value_tables = [0, 1, 0, 1]
value_layers_gated_by_input = [0, 1, 4, 5]
gate_columns = 15
smear = true
skip_from = [1, 1]
skip_to = [3, 4]
skip_gate = true
backout_from = 4
gated_layers = [0, 1, 2, 3, 4, 5]
key_offset_layers = [0, 5]
)";
  EXPECT_EQ(rule({}, medium), "");
  EXPECT_EQ(rule({"model.value_tables=[0, 1]"}, medium),
            "model.value_tables has 2 tables, model.value_layers has 4 layers: each layer needs a table");
  EXPECT_EQ(rule({"model.value_tables=[0, 2, 1, 0]"}, medium), "model.value_tables names table 2 before table 1");
  EXPECT_EQ(
      rule({"model.value_layers_gated_by_input=[0, 1]"}, medium),
      "model.gate_columns = 15 must be even: gates of model.value_layers read half of them of each of two streams, "
      "but where model.value_layers_gated_by_input names the layer");
  EXPECT_EQ(rule({"model.skip_to=[3, 3]"}, medium), "model.skip_to names layer 3 twice: a layer takes up one skip");
  EXPECT_EQ(rule({"model.skip_from=[1, -1]"}, medium),
            "model.skip_from has -1 among 2 numbers; -1 alone says that there is no skip");
  EXPECT_EQ(rule({"model.skip_to=[-1, 3]"}, medium),
            "model.skip_to has -1 among 2 numbers; -1 alone says that there is no skip");
  EXPECT_EQ(rule({"model.skip_to=[1, 4]"}, medium), "model.skip_to = 1 must be a layer above model.skip_from = 1");
  EXPECT_EQ(rule({"model.backout_from=5"}, medium),
            "model.backout_from = 5 must be below the last of model.layers = 6");
  EXPECT_EQ(rule({"model.bigram_rows=100"}, medium),
            "model.second_embedding and model.bigram_rows are both added beside x0: leave one out");
  EXPECT_EQ(rule({"model.bigram_rows=100", "model.second_embedding=false"}, medium), "");
  EXPECT_EQ(rule({"model.value_path=first", "model.value_layers=[]", "model.value_tables=[]",
                  "model.value_layers_gated_by_input=[]"},
                 medium),
            "model.residual = \"before\" needs model.value_path = \"none\" or \"gated_embeddings\"");
}

TEST_F(CheckLayersOnCpus, PairedHeads) {
  EXPECT_EQ(rule({"model.heads=1", "model.width=16", "model.mudd=false"}),
            "model.paired_layers pairs heads: model.heads = 1 must be even");
  EXPECT_EQ(rule({"window.layers=SSLSLL"}),
            "model.paired_layers names layer 4, whose letter in window.layers must be S");
  EXPECT_EQ(rule({"window.layers=L"}), "model.paired_layers names layer 0, whose letter in window.layers must be S");
  for (const char* list : {"xsa_layers", "key_offset_layers", "composed_layers"}) {
    EXPECT_EQ(rule({fmt::format("model.{}=4", list)}),
              fmt::format("model.paired_layers and model.{} both name layer 4", list));
  }
  EXPECT_EQ(rule({"model.gated_layers=4"}), "");
}

TEST_F(CheckLayersOnCpus, FrequenciesAreThoseOfTheTurningPairs) {
  EXPECT_EQ(rule({"model.rotary_frequencies=[1]"}),
            "model.rotary_frequencies has 1 numbers; model.rotary turns 4 pairs of model.head_dim = 16");
  EXPECT_EQ(rule({"model.rotary_frequencies=[1,0.5,0.2,0]"}), "");
}

TEST_F(CheckLayersOnCpus, KeyOffsetsNeedStillDims) {
  EXPECT_EQ(rule({"model.rotary=full"}),
            "model.key_offset_layers needs the dims that model.rotary = \"half_truncated\" leaves still");
}

TEST_F(CheckLayersOnCpus, WidthsOfQueriesAndKeys) {
  EXPECT_EQ(rule({"model.qk_dims=12"}), "");
  EXPECT_EQ(rule({"model.qk_dims=[8, 8, 16, 0, 8, 12]", "model.attention_scale_narrow=0.2"}), "");
  EXPECT_EQ(rule({"model.qk_dims=[8, 16]"}),
            "model.qk_dims has 2 numbers; it needs one, or one for each of the 6 layers");
  EXPECT_EQ(rule({"model.qk_dims=20"}), "model.qk_dims has 20 for layer 0; it must be from 4 to model.head_dim = 16");
  EXPECT_EQ(rule({"model.qk_dims=[8, 0, 16, 0, 8, 8]"}),
            "model.qk_dims has 0 for layer 1; it must be from 4 to model.head_dim = 16");
  EXPECT_EQ(rule({"model.qk_dims=[8, 8, 16, 8, 8, 8]"}),
            "model.qk_dims has 8 for layer 3, which model.layers_without_attention excludes: it must be 0");
  EXPECT_EQ(rule({"model.qk_dims=[16]", "model.attention_scale_narrow=0.2"}),
            "model.attention_scale_narrow needs a layer whose model.qk_dims is below model.head_dim");
  EXPECT_EQ(rule({"model.qk_dims=[16, 8, 8, 0, 8, 8]"}),
            "model.key_offset_layers names layer 2, whose keys have no dims that stand still: rotary turns 4 pairs of "
            "model.qk_dims = 8");
  EXPECT_EQ(rule({"model.qk_dims=8", "model.rotary_frequencies=[1,0.5,0.2]"}),
            "model.rotary_frequencies has 3 numbers; model.rotary turns 2 pairs of the widest of model.qk_dims = 8");
  EXPECT_EQ(unet_rule({"model.qk_dims=64"}), "model.qk_dims needs model.residual = \"scaled\" or \"before\"");
}

TEST_F(CheckLayersOnCpus, GatesAndNets) {
  const auto narrow = [](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {"model.width=8",    "model.heads=2",         "model.head_dim=4",
                                          "model.mudd=false", "model.value_layers=[]", "model.value_path=none"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return rule(overrides);
  };
  EXPECT_EQ(narrow({}), "model.width = 8 must be at least model.gate_columns = 12 for the gates of model.smear");
  EXPECT_EQ(narrow({"model.smear=false"}), "");
  EXPECT_EQ(narrow({"model.smear=false", "model.skip_gate=true", "model.gate_nets=false", "model.composed_layers=[]",
                    "model.gated_layers=[]"}),
            "model.width = 8 must be at least model.gate_columns = 12 for the gates of model.skip_gate");
  EXPECT_EQ(narrow({"model.smear=false", "model.gate_nets=false", "model.composed_layers=[]"}),
            "model.width = 8 must be at least model.gate_columns = 12 for the gates of model.gated_layers");
  EXPECT_EQ(narrow({"model.smear=false", "model.value_path=gated_embeddings", "model.value_layers=1"}),
            "model.width = 8 must be at least model.gate_columns = 12 for the gates of model.value_layers");
  EXPECT_EQ(rule({"model.gate_net_layer=6"}), "model.gate_net_layer = 6 must be below model.layers = 6");
  EXPECT_EQ(rule({"model.gate_nets=false"}),
            "model.composed_layers needs model.gate_nets, which give the weights of the heads");
}

TEST_F(CheckLayersOnCpus, MuddMixesStreamsThatAreThere) {
  EXPECT_EQ(rule({"model.attention_source=-1"}), "model.mudd needs model.attention_source, whose stream it mixes");
  EXPECT_EQ(rule({"model.skip_from=-1", "model.skip_to=-1"}),
            "model.mudd needs model.skip_from, whose stream it mixes");
  for (const int source : {1, 4}) {
    EXPECT_EQ(rule({fmt::format("model.attention_source={}", source)}),
              fmt::format("model.mudd mixes three streams: model.attention_source = {} must be neither model.skip_from "
                          "= 1 nor layer 4, the one before the last",
                          source));
  }
  EXPECT_EQ(rule({"model.value_layers=[1, 4]"}),
            "model.mudd needs a value embedding on the last layer: model.value_layers must end with 5");
  EXPECT_EQ(rule({"model.heads=1", "model.width=16", "model.paired_layers=[]"}),
            "model.mudd has a gate for each half of the heads: model.heads = 1 must be even");
  EXPECT_EQ(rule({"model.bigram_rows=0", "model.bigram_sign_rows=0"}), "");
}
