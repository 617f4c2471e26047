#include "src/run/trained_model.hpp"

#include <algorithm>

#include "src/data/shard_file.hpp"
#include "src/data/token_origin.hpp"
#include "src/optimizer/hyperparameters.hpp"
#include "src/run/checkpoint.hpp"
#include "src/run/final_weights.hpp"
#include "src/storage/bin_file.hpp"

namespace nanorun {

namespace {

/// How fp32 weights are narrowed to the type that ops read.
enum class Narrowing : bool { rounded, truncated };

/// Fills one parameter, of which `values` are the fp32 weights, in the type in which ops read it.
template <class T>
void set_parameter(kernels::Stream stream, std::span<T> parameter, std::span<const float> values, Narrowing how) {
  if constexpr (std::is_same_v<T, float>) {
    ops::copy_to_device(stream, parameter.data(), values.data(), values.size_bytes());
  } else {
    const TensorArena<float> masters(values.size(), "the weights");
    ops::copy_to_device(stream, masters.data(), values.data(), values.size_bytes());
    ops::round_to<T>(stream, parameter, masters.span(), how == Narrowing::truncated);
    ops::synchronize(stream);
  }
}

void read_weights(const std::string& path, const CheckpointHeader& header, const Config& config,
                  const ParameterTable& table, const Weights<Real>& weights, kernels::Stream stream) {
  Comm alone(MPI_COMM_SELF);
  std::vector<Slab<float>> slabs = weight_slabs(table);
  std::vector<float> values;
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    const Parameter& parameter = table.parameters()[i];
    values.resize(parameter.size());
    slabs[i].data = values;
    read_final_weights(alone, path, header, config, table, {slabs[i]});
    if (parameter.offset < table.tensor_size()) {
      const std::span<Real> tensor = weights.tensors().subspan(parameter.offset, parameter.size());
      set_parameter(stream, tensor, values, Narrowing{hyperparameters(config, parameter).truncates});
    } else {
      const std::size_t first = parameter.offset - table.tensor_size();
      const std::span<float> scalars = weights.scalars().subspan(first, parameter.size());
      set_parameter(stream, scalars, values, Narrowing::rounded);
    }
    ops::synchronize(stream);
  }
}

}  // namespace

Config trained_config(const CheckpointHeader& header, const std::string& path,
                      const std::vector<std::string>& overrides) {
  Config config = parse_deck(header.deck, path, overrides);
  config.head.precision = LmHeadChoice::automatic;
  check_model(config);
  return config;
}

Token end_of_text_of(const std::string& checkpoint, const Config& config, std::optional<int> given) {
  const auto vocabulary = static_cast<std::uint64_t>(config.model.vocabulary);
  const auto refuse = [&](const std::string& why) {
    throw Error(ExitCode::usage, fmt::format("{}: has a vocabulary of {}: {}", checkpoint, vocabulary, why));
  };
  if (given) {
    if (static_cast<std::uint64_t>(*given) >= vocabulary)
      refuse(fmt::format("--end-of-text must be below that, not {}", *given));
    return static_cast<Token>(*given);
  }
  if (vocabulary == text_vocabulary) return static_cast<Token>(text_end_of_text);
  if (vocabulary != bin_vocabulary) refuse("say with --end-of-text which of its tokens begins documents");
  return static_cast<Token>(bin_end_of_text);
}

std::vector<Slab<float>> weight_slabs(const ParameterTable& table) {
  std::vector<Slab<float>> slabs;
  for (const Parameter& parameter : table.parameters()) {
    const auto cols = static_cast<std::uint64_t>(parameter.shared_cols());
    const std::uint64_t rows = parameter.size() / cols;
    slabs.push_back({"/weights/" + parameter.name, rows, cols, 0, rows, {}});
  }
  return slabs;
}

void require_own_model(const CheckpointHeader& header, const ParameterTable& table, const std::string& path) {
  const std::string expected = model_fingerprint(table.layout());
  if (header.model == expected) return;
  throw Error(ExitCode::checkpoint,
              fmt::format("{}: its model has the fingerprint {}, that of its deck {}: another version of the program "
                          "has written it",
                          path, header.model, expected),
              Scope::all_ranks);
}

void require_own_tokenizer(const CheckpointHeader& header, const Config& config, const std::string& path,
                           const Tokenizer& tokenizer, const std::string& table, Warn warn) {
  const auto refuse = [](const std::string& message) { throw Error(ExitCode::data, message, Scope::all_ranks); };
  const TokenOrigin own = origin_of(tokenizer, table);
  const TokenOrigin model = origin_of(header.tokenizer, path, config.model.vocabulary);
  const std::string other = other_tokenizer(own, model);
  if (!other.empty()) refuse(other + "; give the table that the model was trained with");
  if (tokenizer.vocabulary() > static_cast<std::uint64_t>(config.model.vocabulary)) {
    refuse(fmt::format("{}: has {} tokens, the model of {} has {}: it was trained with another tokenizer", table,
                       tokenizer.vocabulary(), path, config.model.vocabulary));
  }
  const std::string unlike = other_vocabulary(own, model);
  if (warn == Warn::yes && !unlike.empty()) complain("warning: " + unlike);
}

TrainedWeights::TrainedWeights(Comm& comm, const std::string& path, const CheckpointHeader& header,
                               const Config& config, kernels::Stream stream)
    : table(config.model), weights(table) {
  require_own_model(header, table, path);
  comm.together([&] { read_weights(path, header, config, table, weights, stream); });
}

}  // namespace nanorun
