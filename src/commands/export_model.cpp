#include "src/commands/export_model.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/device/types.hpp"
#include "src/base/error.hpp"
#include "src/base/output_file.hpp"
#include "src/commands/export_files.hpp"
#include "src/commands/exported_config.hpp"
#include "src/commands/safetensors.hpp"
#include "src/config/schedule.hpp"
#include "src/run/final_weights.hpp"
#include "src/run/trained_model.hpp"
#include "src/tokenizer/tokenizer_table.hpp"

namespace nanorun {

namespace {

using Json = nlohmann::ordered_json;

// --- model.safetensors -----------------------------------------------------------------------------------------------

bool is_scalar(const Parameter& parameter) { return parameter.shared_cols() == 1; }

std::vector<SafeTensor> tensors_of(const ParameterTable& table, bool bf16) {
  std::vector<SafeTensor> tensors;
  std::uint64_t offset = 0;
  for (const Parameter& parameter : table.parameters()) {
    const bool halves = bf16 && !is_scalar(parameter);
    const std::uint64_t bytes = parameter.size() * (halves ? 2 : 4);
    tensors.push_back({parameter.name, halves ? "BF16" : "F32", exported_shape(parameter), offset, offset + bytes});
    offset += bytes;
  }
  return tensors;
}

/// Writes the tensors one by one, so that memory holds one at a time, and verifies its checksum.
void write_tensors(const std::string& path, const ExportOptions& options, const CheckpointHeader& header,
                   const Config& config, const ParameterTable& table) {
  Comm alone(MPI_COMM_SELF);
  const std::vector<SafeTensor> tensors = tensors_of(table, options.bf16);
  std::vector<Slab<float>> slabs = weight_slabs(table);
  std::vector<float> values;
  std::vector<kernels::bf16> halves;
  std::vector<std::string> non_finite;
  AppendFile file(path, ExitCode::output);
  file.write(safetensors_header(tensors));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    values.resize(table.parameters()[i].size());
    slabs[i].data = values;
    read_final_weights(alone, options.checkpoint, header, config, table, {slabs[i]});
    if (!all_finite(values)) non_finite.push_back(tensors[i].name);
    if (tensors[i].type == "F32") {
      file.write(std::as_bytes(std::span(values)));
    } else {
      halves.clear();
      for (const float value : values) halves.push_back(kernels::to_bf16(value));
      file.write(std::as_bytes(std::span(halves)));
    }
  }
  file.close();
  warn_of_non_finite(options.checkpoint, non_finite);
}

struct PythonFile {
  const char *name, *text;
};

/// The Python files of a model.
std::vector<PythonFile> python_files(const ModelConfig& model) {
  std::vector<PythonFile> files = {{"configuration_nanorun.py", configuration_nanorun_py},
                                   {"modeling_nanorun.py", modeling_nanorun_py}};
  if (model.residual == Residual::plain) files.push_back({"modeling_nanorun_plain.py", modeling_nanorun_plain_py});
  const bool before = model.residual == Residual::before;
  if (before || model.residual == Residual::scaled)
    files.push_back({"modeling_nanorun_scaled.py", modeling_nanorun_scaled_py});
  if (before) files.push_back({"modeling_nanorun_before.py", modeling_nanorun_before_py});
  return files;
}

void write_python(const std::string& directory, const ModelConfig& model) {
  for (const auto& [name, text] : python_files(model)) replace_text(directory + "/" + name, ExitCode::output, text);
}

/// How transformers lets the model write: without a cache of keys and values, which its forward pass has not.
void write_generation(const std::string& directory, Token end_of_text) {
  const Json settings = {{"bos_token_id", end_of_text}, {"eos_token_id", end_of_text}, {"use_cache", false}};
  replace_text(directory + "/generation_config.json", ExitCode::output, settings.dump(2) + "\n");
}

// --- Tokenizer -------------------------------------------------------------------------------------------------------

constexpr const char* table_of_merges[] = {"vocab.json", "merges.txt"};
constexpr const char* table_as_json = "tokenizer.json";

/// Throws Error(output) where AutoTokenizer would read another table than the one that is written.
void require_no_other_table(const std::string& directory) {
  const std::string other = directory + "/" + table_as_json;
  if (kind_of(other, ExitCode::output) == FileKind::absent) return;
  throw Error(ExitCode::output, fmt::format("{}: transformers would read it in place of {} and {}: move it away", other,
                                            table_of_merges[0], table_of_merges[1]));
}

/// Writes what transformers' AutoTokenizer loads: a tokenizer.json as it is, other tables as the two files of GPT-2.
void write_tokenizer(const ExportOptions& options, const TokenizerTable& table, int length) {
  const auto write = [&](const char* name, const std::string& text) {
    replace_text(options.directory + "/" + name, ExitCode::output, text);
  };
  if (table.from_json) {
    write(table_as_json, read_text(options.tokenizer, max_table_bytes, ExitCode::data));
  } else {
    write(table_of_merges[0], vocab_json(table));
    write(table_of_merges[1], merges_txt(table));
  }
  const Json settings = {{"tokenizer_class", table.from_json ? "PreTrainedTokenizerFast" : "GPT2Tokenizer"},
                         {"bos_token", end_of_text_symbol},
                         {"eos_token", end_of_text_symbol},
                         {"unk_token", end_of_text_symbol},
                         {"add_prefix_space", false},
                         {"clean_up_tokenization_spaces", false},
                         {"model_max_length", length}};
  write("tokenizer_config.json", settings.dump(2) + "\n");
}

/// Names of all files that are written beside the tensors.
std::vector<std::string> further_files(const ModelConfig& model, const std::optional<Tokenizer>& tokenizer) {
  std::vector<std::string> names = {"generation_config.json", "config.json"};
  for (const PythonFile& file : python_files(model)) names.push_back(file.name);
  if (!tokenizer) return names;
  names.push_back("tokenizer_config.json");
  if (tokenizer->table().from_json) {
    names.push_back(table_as_json);
  } else {
    names.insert(names.end(), std::begin(table_of_merges), std::end(table_of_merges));
  }
  return names;
}

/// The tokenizer that the user names; none where the user names none. Throws Error(usage, data, output).
std::optional<Tokenizer> load_tokenizer(const ExportOptions& options, const CheckpointHeader& header,
                                        const Config& config) {
  if (options.tokenizer.empty()) return std::nullopt;
  Tokenizer tokenizer(options.tokenizer);
  require_own_tokenizer(header, config, options.checkpoint, tokenizer, options.tokenizer);
  if (options.end_of_text.value_or(tokenizer.end_of_text()) != tokenizer.end_of_text()) {
    throw Error(ExitCode::usage, fmt::format("--end-of-text {}: the end-of-text token of {} is {}",
                                             *options.end_of_text, options.tokenizer, tokenizer.end_of_text()));
  }
  if (!tokenizer.table().from_json) require_no_other_table(options.directory);
  return tokenizer;
}

/// Transformers imports the Python files as modules of a package that has the directory's name.
void warn_of_dot(const std::string& directory) {
  std::string path = directory;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  if (name_of(path) == "." || name_of(path) == "..") quietly([&] { path = canonical_path(path, ExitCode::output); });
  if (name_of(path).find('.') == std::string::npos) return;
  warn(fmt::format("{}: some versions of transformers cannot load a model from a directory with a dot in its name",
                   directory));
}

void require_empty(const ExportOptions& options) {
  if (options.force || kind_of(options.directory, ExitCode::output) == FileKind::absent) return;
  const std::vector<std::string> names = list_directory(options.directory, ExitCode::output);
  if (names.empty()) return;
  throw Error(ExitCode::output, fmt::format("{}: holds {} already; name another directory, or write into it with "
                                            "--force",
                                            options.directory, excerpt(names.front())));
}

}  // namespace

std::vector<std::uint64_t> exported_shape(const Parameter& parameter) {
  const auto cols = static_cast<std::uint64_t>(parameter.cols);
  const std::uint64_t rows = parameter.size() / cols;
  if (is_scalar(parameter) && (rows == 1 || cols == 1)) return {rows * cols};
  return {rows, cols};
}

bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

void warn_of_non_finite(const std::string& path, const std::vector<std::string>& tensors) {
  if (tensors.empty()) return;
  const std::size_t others = tensors.size() - 1;
  warn(fmt::format("{}: {}{} hold{} NaN or infinity: the model's loss is no number", path, tensors.front(),
                   others > 0 ? fmt::format(" and {} more tensor{}", others, others > 1 ? "s" : "") : "",
                   others > 0 ? "" : "s"));
}

void export_model(const ExportOptions& options) {
  Comm alone(MPI_COMM_SELF);
  const CheckpointHeader header = read_checkpoint_header(alone, options.checkpoint);
  const Config config = parse_deck(header.deck, options.checkpoint, {});
  const ParameterTable table(config.model);
  require_own_model(header, table, options.checkpoint);
  const std::optional<Tokenizer> tokenizer = load_tokenizer(options, header, config);
  const Token end_of_text =
      tokenizer ? tokenizer->end_of_text() : end_of_text_of(options.checkpoint, config, options.end_of_text);
  const std::string json = exported_config(options.checkpoint, config, header.progress.step, end_of_text,
                                           tokenizer ? tokenizer->record() : header.tokenizer,
                                           options.bf16 ? ExportedType::bf16 : ExportedType::fp32);
  require_empty(options);
  warn_of_dot(options.directory);
  make_directories(options.directory, ExitCode::output);
  const std::string model = options.directory + "/model.safetensors";
  require_free(model, Overwrite{options.force}, {&options.checkpoint, 1}, ExitCode::output);
  claim_output(model, Overwrite{options.force}, ExitCode::output);  // keeps a second command away from all files
  complete_file(model, ExitCode::output, [&](const std::string& partial) {
    for (const std::string& name : further_files(config.model, tokenizer))
      require_free(options.directory + "/" + name, Overwrite::yes, {}, ExitCode::output);
    write_tensors(partial, options, header, config, table);
    write_python(options.directory, config.model);
    write_generation(options.directory, end_of_text);
    if (tokenizer) write_tokenizer(options, tokenizer->table(), longest_length(config));
    replace_text(options.directory + "/config.json", ExitCode::output, json);
  });
}

}  // namespace nanorun
