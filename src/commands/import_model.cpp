#include "src/commands/import_model.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/base/output_file.hpp"
#include "src/commands/export_model.hpp"
#include "src/commands/exported_config.hpp"
#include "src/commands/safetensors.hpp"
#include "src/optimizer/stored_tensors.hpp"
#include "src/run/checkpoint.hpp"
#include "src/run/trained_model.hpp"

namespace nanorun {

namespace {

constexpr const char* weights_file = "model.safetensors";

/// Throws Error(data) where the directory holds the weights in another form than this program reads.
void require_weights(const std::string& directory) {
  if (kind_of(directory, ExitCode::data) == FileKind::regular)
    throw Error(ExitCode::data,
                fmt::format("{}: a file; name the directory that holds {} and config.json", directory, weights_file));
  if (exists(directory + "/" + weights_file, ExitCode::data)) return;
  constexpr std::pair<const char*, const char*> others[] = {
      {"model.safetensors.index.json", "the weights are in several files"},
      {"adapter_model.safetensors", "an adapter's weights alone, to be merged into those of its model"},
      {"pytorch_model.bin", "weights as Python's pickle writes them"},
      {"pytorch_model.bin.index.json", "weights as Python's pickle writes them, in several files"}};
  for (const auto& [name, what] : others) {
    const std::string path = directory + "/" + name;
    if (!exists(path, ExitCode::data)) continue;
    throw Error(ExitCode::data, fmt::format("{}: {}; nanorun import reads one {}: write them anew with "
                                            "safetensors.torch.save_file, or with save_pretrained and a larger "
                                            "max_shard_size",
                                            path, what, weights_file));
  }
}

/// Why the file may lack a tensor: it has one whose name continues a prefix. Empty where it has none.
std::string prefix_hint(const SafeTensors& file, const std::string& name) {
  const auto named = [&](const SafeTensor& tensor) { return tensor.name.ends_with("." + name); };
  const auto found = std::ranges::find_if(file.tensors, named);
  if (found == file.tensors.end()) return {};
  const std::string prefix = found->name.substr(0, found->name.size() - name.size());
  std::string origin;
  if (prefix.find("_orig_mod.") != prefix.npos) {
    origin = ", which torch.compile adds,";
  } else if (prefix.find("module.") != prefix.npos) {
    origin = ", which DistributedDataParallel adds,";
  }
  return fmt::format(", but holds {}: remove the prefix \"{}\"{} from the names", excerpt(found->name), excerpt(prefix),
                     origin);
}

/// The tensors of the file in the order of the table. Throws where they are not those of the table.
std::vector<SafeTensor> match_tensors(const std::string& path, const SafeTensors& file, const ParameterTable& table) {
  const auto refuse = [&](const std::string& reason) { throw Error(ExitCode::data, path + ": " + reason); };
  std::vector<SafeTensor> tensors;
  for (const Parameter& parameter : table.parameters()) {
    const std::string& name = parameter.name;
    const auto found = std::ranges::find(file.tensors, name, &SafeTensor::name);
    if (found == file.tensors.end()) refuse(fmt::format("lacks the tensor {}{}", name, prefix_hint(file, name)));
    const std::vector<std::uint64_t> shape = exported_shape(parameter);
    if (found->shape != shape) {
      const bool padded = name == "head";
      refuse(fmt::format("{}: has the shape [{}]; by config.json it is [{}]{}", name, fmt::join(found->shape, ", "),
                         fmt::join(shape, ", "), padded ? ", the vocabulary padded to a multiple of 128" : ""));
    }
    tensors.push_back(*found);
  }
  for (const SafeTensor& tensor : file.tensors) {
    if (std::ranges::find(tensors, tensor.name, &SafeTensor::name) == tensors.end())
      refuse(fmt::format("holds {}, which is no tensor of the model", excerpt(tensor.name)));
  }
  return tensors;
}

/// What a checkpoint of the table holds: its weights are in `weights` [table.size()], the optimizer's state is zeros.
std::vector<Slab<float>> checkpoint_slabs(const Config& config, const ParameterTable& table, std::span<float> weights,
                                          std::vector<float>& zeros) {
  const UpdateRules<Real> rules(config);
  std::vector<Slab<float>> slabs = weight_slabs(table);
  const std::size_t count = slabs.size();
  for (const Parameter& parameter : table.parameters()) zeros.resize(std::max(zeros.size(), parameter.size()));
  for (std::size_t i = 0; i < count; ++i) {
    const Parameter& parameter = table.parameters()[i];
    slabs[i].data = weights.subspan(parameter.offset, parameter.size());
    const OwnedRows all{&parameter, slabs[i].total_rows, slabs[i].cols, 0, slabs[i].row_count, parameter.offset};
    for (const StateTensor& state : rules.of(parameter.group).state(all)) {
      slabs.push_back(slab_of(state, std::span(zeros).first(state.rows.size())));
    }
  }
  return slabs;
}

}  // namespace

void import_model(const ImportOptions& options, const std::string& provenance) {
  require_weights(options.directory);
  const DescribedModel described = read_exported_config(options.directory + "/config.json");
  const Config& config = described.config;
  const std::string path = options.directory + "/" + weights_file;
  const SafeTensors file = read_safetensors(path);
  const ParameterTable table(config.model);
  const std::vector<SafeTensor> tensors = match_tensors(path, file, table);
  const std::array inputs = {path, options.directory + "/config.json"};
  require_free(options.checkpoint, Overwrite{options.force}, inputs, ExitCode::output);
  std::vector<float> weights(table.size()), zeros;
  std::vector<std::string> non_finite;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Parameter& parameter = table.parameters()[i];
    const std::span<float> values = std::span(weights).subspan(parameter.offset, parameter.size());
    read_safetensor(path, file, tensors[i], values);
    if (!all_finite(values)) non_finite.push_back(parameter.name);
  }
  warn_of_non_finite(path, non_finite);
  CheckpointHeader header;
  header.model = model_fingerprint(table.layout());
  header.deck = to_toml(config);
  header.tokenizer = described.tokenizer;
  header.provenance = provenance;
  Comm alone(MPI_COMM_SELF);
  claim_output(options.checkpoint, Overwrite{options.force}, ExitCode::output);
  complete_file(options.checkpoint, ExitCode::output, [&](const std::string& partial) {
    try {
      write_checkpoint(alone, partial, header, checkpoint_slabs(config, table, weights, zeros));
    } catch (const Error& error) {  // of a checkpoint, which is the output here
      const ExitCode code = error.code() == ExitCode::checkpoint ? ExitCode::output : error.code();
      throw Error(code, error.what(), error.scope(), error.cause());
    }
  });
}

}  // namespace nanorun
