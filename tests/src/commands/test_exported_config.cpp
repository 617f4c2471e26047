#include "src/commands/exported_config.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <tuple>
#include <type_traits>

#include "src/commands/export_files.hpp"
#include "src/config/config_keys.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temp_folder.hpp"

namespace nanorun {
namespace {

using Names = std::set<std::string>;

Names set_of(std::span<const char* const> names) { return {names.begin(), names.end()}; }

/// Keys of [model] in a Python file: settings["key"], settings.get("key").
Names keys_in(const std::string& python) {
  static const std::regex pattern(R"#((?:settings|config\.model)(?:\[|\.get\()"(\w+)")#");
  Names keys;
  for (auto found = std::sregex_iterator(python.begin(), python.end(), pattern); found != std::sregex_iterator();
       ++found) {
    keys.insert((*found)[1]);
  }
  return keys;
}

Names keys_of_model() {
  Names keys;
  for (const Key& key : key_table()) {
    if (key.section == std::string("model")) keys.insert(key.name);
  }
  return keys;
}

/// Gives a key another value than its default.
void change(const Key& key, Config& config) {
  std::visit(
      []<class V>(V* member) {
        if constexpr (std::is_enum_v<V>) {
          for (const Named<V>& named : names_of<V>) {
            if (named.value == *member) continue;
            *member = named.value;
            return;
          }
        } else if constexpr (std::is_same_v<V, bool>) {
          *member = !*member;
        } else if constexpr (std::is_arithmetic_v<V>) {
          *member += 1;
        } else if constexpr (std::is_same_v<V, std::string>) {
          *member += "S";
        } else {
          member->push_back({});
        }
      },
      key.field(config));
}

TEST(ExportedConfig, TableNamesTheKeysThatPythonReads) {
  Names read = keys_in(modeling_nanorun_py);
  read.merge(keys_in(modeling_nanorun_plain_py));
  read.merge(keys_in(modeling_nanorun_scaled_py));
  read.merge(keys_in(modeling_nanorun_before_py));
  EXPECT_EQ(read, set_of(keys_read_by_python()));
}

/// Whoever adds a key to the model comes by here: Python must compute it, unless it says nothing of a trained model.
TEST(ExportedConfig, KeysThatPythonDoesNotRead) {
  Names unread = keys_of_model();
  for (const std::string& key : set_of(keys_read_by_python())) EXPECT_EQ(unread.erase(key), 1) << key;
  // model.residual chooses the Python file, and what yarn does is in rotary_frequencies and attention_scale.
  Names expected = set_of(keys_of_first_weights());
  expected.insert({"residual", "yarn", "yarn_last_window"});
  EXPECT_EQ(unread, expected);
  EXPECT_EQ(
      set_of(keys_of_first_weights()),
      (Names{"init_scale", "init_std", "init_std_outputs", "zero_outputs", "zero_attention_outputs", "init_embedding",
             "init_value_embedding", "mudd_backout", "init_scale_mlp", "init_embedding2", "init_residual"}));
}

TEST(ExportedConfig, KeysThatPythonDoesNotReadAreRefused) {
  const Names alike = {"residual",       "init_scale",           "init_std",
                       "zero_outputs",   "init_std_outputs",     "zero_attention_outputs",
                       "mudd_backout",   "init_value_embedding", "init_embedding",
                       "init_scale_mlp", "init_embedding2",      "init_residual"};
  for (const Key& key : key_table()) {
    if (key.section != std::string("model")) continue;
    std::vector<const char*> others;
    for (const char* const name : keys_read_by_python()) {
      if (name != std::string(key.name)) others.push_back(name);
    }
    Config config;
    EXPECT_EQ(unread_key(config, others), "") << key.name;
    change(key, config);
    const std::string refused = unread_key(config, others);
    if (alike.contains(key.name)) {
      EXPECT_EQ(refused, "");
    } else {
      EXPECT_EQ(refused.find(key.path() + " = "), 0) << key.name << ": " << refused;
    }
  }
  Config config;
  config.model.skip_gate = true;
  EXPECT_EQ(unread_key(config, {}), "model.skip_gate = true");
}

class ExportedConfigFile : public testing::Test {
 protected:
  /// With one occurrence of a text replaced by another.
  std::string error_with(const std::string& from, const std::string& to) const {
    std::string text = text_;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    return error_in(text.replace(at, from.size(), to));
  }
  std::string error_in(const std::string& text) const {
    std::ofstream(path_, std::ios::binary) << text;
    const std::string error = error_of([&] { read_exported_config(path_); });
    EXPECT_EQ(error.find(path_ + ": "), error.empty() ? error.npos : 0) << error;
    return error.empty() ? error : error.substr(path_.size() + 2);
  }

  TempFolder folder_;
  std::string path_ = folder_ / "config.json";
  std::string text_ = exported_config("checkpoint.h5", Config(), 0, 50256, {"gpt2", 7}, ExportedType::fp32);
};

TEST_F(ExportedConfigFile, ComesBack) {
  EXPECT_EQ(error_in(text_), "");
  const DescribedModel model = read_exported_config(path_);
  EXPECT_EQ(model.tokenizer.name, "gpt2");
  EXPECT_EQ(exported_config("other.h5", model.config, 0, 50256, model.tokenizer, ExportedType::fp32), text_);
}

TEST_F(ExportedConfigFile, RowsComeBack) {
  Config config;
  config.data.packing = Packing::rows;
  config.data.row_length = 64;
  text_ = exported_config("checkpoint.h5", config, 0, 50256, {"gpt2", 7}, ExportedType::fp32);
  EXPECT_EQ(error_in(text_), "");
  const Config read = read_exported_config(path_).config;
  EXPECT_EQ(read.data.packing, Packing::rows);
  EXPECT_EQ(read.data.row_length, 64);
  EXPECT_EQ(error_with("\"rows\"", "\"stream\""), "data.packing = \"stream\": a model has \"rows\", or no data");
  for (const std::string wrong : {"0", "100", "-64", "\"64\"", "1e30"}) {
    EXPECT_NE(
        error_with("\"row_length\": 64", "\"row_length\": " + wrong).find(": must divide max_position_embeddings"),
        std::string::npos);
  }
  EXPECT_EQ(error_with("\"row_length\"", "\"rows\""), "data.rows: unknown key: correct its name, or remove it");
  EXPECT_EQ(error_with("\"packing\": \"rows\",", ""), "lacks data.packing");
}

TEST_F(ExportedConfigFile, FieldsOfTransformersAreTaken) {
  EXPECT_EQ(error_with("\"torch_dtype\"", "\"transformers_version\": \"5.17.0\", \"_name_or_path\": \"m\", \"dtype\""),
            "");
}

TEST_F(ExportedConfigFile, UnknownKeysAreRefused) {
  const std::string remedy = ": unknown key: correct its name, or remove it";
  EXPECT_EQ(error_with("\"norm_eps\"", "\"norm_epsilon\""), "model.norm_epsilon" + remedy);
  EXPECT_EQ(error_with("\"quantum\"", "\"new\\nkey\""), "window.new\\nkey" + remedy);
  EXPECT_EQ(error_with("\"window\"", "\"windows\""), "windows" + remedy);
  EXPECT_EQ(error_with("\"window\"", "\"stage\": [{\"short_window\": 128, \"long_windows\": 128}], \"window\""),
            "stage.0.long_windows" + remedy);
}

TEST_F(ExportedConfigFile, KeysThatStandTwiceAreRefused) {
  EXPECT_EQ(error_with("\"norm_eps\"", "\"layers\": 12, \"norm_eps\""), "names the key \"layers\" twice");
  EXPECT_EQ(error_with("\"window\"", "\"vocab_size\": 7, \"window\""), "names the key \"vocab_size\" twice");
  EXPECT_EQ(error_with("\"window\"", "\"stage\": [{\"short_window\": 1, \"short_window\": 2}], \"window\""),
            "names the key \"short_window\" twice");
}

TEST_F(ExportedConfigFile, ValuesAreRefusedBeforeWhatTheyContradict) {
  Config config;
  config.model.residual = Residual::plain;
  config.model.value_path = ValuePath::none;
  text_ = exported_config("checkpoint.h5", config, 0, 50256, {"gpt2", 7}, ExportedType::fp32);
  EXPECT_EQ(error_in(text_), "");
  for (const auto& [from, to, got] : {std::tuple("\"residual\": \"plain\"", "\"residual\": \"gpt2\"", "'gpt2'"),
                                      std::tuple("\"tied_head\": false", "\"tied_head\": 1", "1")}) {
    const std::string error = error_with(from, to);
    EXPECT_NE(error.find(std::string(": got ") + got + ", allowed: "), error.npos) << error;
  }
}

TEST_F(ExportedConfigFile, OtherTextsAreRefused) {
  EXPECT_EQ(error_in("[1]"), "not a JSON object");
  EXPECT_EQ(error_in("{\"model_type\": \"nanorun\"} // mine"), "is not JSON (at byte 27)");
  EXPECT_EQ(error_in(std::string("{}\0", 3)), "is not JSON: it holds zero bytes");
  EXPECT_EQ(error_in(std::string(100'000, '[')), "nests deeper than 8 levels");
  EXPECT_NE(error_with("15.0", "NaN").find("is not JSON (at byte "), std::string::npos);
}

}  // namespace
}  // namespace nanorun
