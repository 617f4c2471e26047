#include "src/commands/evaluate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/base/error.hpp"
#include "src/base/text.hpp"
#include "src/commands/evaluate_hellaswag.hpp"
#include "src/config/schedule.hpp"
#include "src/data/token_origin.hpp"
#include "src/run/trained_model.hpp"
#include "src/run/validation.hpp"
#include "src/tokenizer/tokenizer.hpp"

namespace nanorun {

namespace {

Config eval_config(const EvalOptions& options, const CheckpointHeader& header) {
  std::vector<std::string> overrides;
  if (options.tokens) overrides.push_back(fmt::format("validation.tokens={}", *options.tokens));
  if (options.length) overrides.push_back(fmt::format("validation.length={}", *options.length));
  Config config = trained_config(header, options.checkpoint, overrides);
  if (!options.data.empty()) config.data.validation = options.data;
  if (options.allow_other_tokenizer) config.data.allow_other_tokenizer = true;
  const ValidationConfig& validation = config.validation;
  const auto refuse = [](const std::string& message) { throw Error(ExitCode::usage, message, Scope::all_ranks); };
  if (config.data.validation.empty())
    refuse(fmt::format("{}: its deck names no validation shards: name some with --data", options.checkpoint));
  if (validation.tokens == 0)
    refuse(fmt::format("{}: its deck validates nothing: say how much with --tokens", options.checkpoint));
  if (validation.tokens % validation.length != 0) {
    refuse(fmt::format("{} tokens are not a multiple of the length {} of a sequence: change --tokens or --length",
                       validation.tokens, validation.length));
  }
  if (config.data.packing == Packing::rows && validation.length % config.data.row_length != 0) {
    refuse(fmt::format("the length {} of a sequence is not a multiple of data.row_length = {} of {}: change --length",
                       validation.length, config.data.row_length, options.checkpoint));
  }
  return config;
}

/// Throws where a shard says that another tokenizer has encoded it, or cannot be of this one.
void require_tokenizer(const Tokenizer& tokenizer, const std::string& file, const std::vector<ShardInfo>& shards) {
  for (const ShardInfo& shard : shards) {
    const auto refuse = [&](const std::string& reason) {
      throw Error(ExitCode::data, fmt::format("{}: {}", shard.path, reason), Scope::all_ranks);
    };
    if (const std::string other = other_tokenizer(origin_of(shard), origin_of(tokenizer, file)); !other.empty())
      throw Error(ExitCode::data, other + "; give the table that made the shard", Scope::all_ranks);
    if (shard.vocabulary > tokenizer.vocabulary() || shard.end_of_text != tokenizer.end_of_text()) {
      refuse(fmt::format("has a vocabulary of {} and the end-of-text token {}, {} has {} and {}", shard.vocabulary,
                         shard.end_of_text, file, tokenizer.vocabulary(), tokenizer.end_of_text()));
    }
  }
}

/// Throws where a shard was encoded with another tokenizer than the shards that the model was trained on, unless that
/// is allowed. Rank 0 warns of the first that was or may have been.
void require_tokenizer_of_model(Comm& comm, const EvalOptions& options, const CheckpointHeader& header,
                                const Config& config, const RunData& data) {
  std::vector<std::string> warnings = shard_warnings(data);
  const TokenOrigin model = origin_of(header.tokenizer, options.checkpoint, config.model.vocabulary);
  for (const ShardInfo& shard : data.validation.opened) {
    const std::string warning =
        compare_origins(origin_of(shard), model, OtherTokenizer{config.data.allow_other_tokenizer},
                        "--allow-other-tokenizer reads it all the same");
    if (!warning.empty() && warnings.empty()) warnings.push_back(warning);
  }
  if (!comm.root()) return;
  for (const std::string& warning : warnings) complain(warning);
}

/// Bytes of text behind each token, none behind the one that begins documents; empty where they are not known.
std::vector<std::uint64_t> bytes_of_tokens(const EvalOptions& options, const CheckpointHeader& header,
                                           const Config& config, Comm& comm, const RunData& data) {
  std::vector<std::uint64_t> bytes;
  if (!options.tokenizer.empty()) {
    comm.together([&] {
      const Tokenizer tokenizer(options.tokenizer);
      require_tokenizer(tokenizer, options.tokenizer, data.validation.opened);
      require_own_tokenizer(header, config, options.checkpoint, tokenizer, options.tokenizer, Warn{comm.root()});
      for (std::uint64_t id = 0; id < tokenizer.vocabulary(); ++id) {
        const auto token = static_cast<Token>(id);
        bytes.push_back(tokenizer.decode({&token, 1}).size());
      }
    });
  } else if (std::ranges::all_of(data.validation.opened, [](const ShardInfo& shard) {
               return shard.vocabulary == text_vocabulary && shard.end_of_text == text_end_of_text &&
                      shard.tokenizer_checksum == 0;
             })) {
    bytes.assign(text_vocabulary, 1);
  }
  if (!bytes.empty()) bytes[data.end_of_text()] = 0;
  return bytes;
}

/// Text on an operand of the LM head in FP8, whose largest finite value is `format`.
std::string head_scale_line(const char* key, double magnitude, double format, double of_run) {
  const double fits = std::exp2(std::floor(std::log2(format / magnitude)));
  return fmt::format("{:<15}largest magnitude {:.4g}, saturates above {} = {}; the run has {}\n", key, magnitude, key,
                     fits, of_run);
}

/// Collective. Text on the three operands, of which `of_rank` holds those of this rank's sequences. The scale of g
/// belongs to the loss of the run: the sum over the tokens, or the mean of scale_g_length ones.
std::string head_scale_lines(Comm& comm, const LmHeadMagnitudes& of_rank, double w, const Config& config) {
  double xg[] = {of_rank.x, of_rank.g};
  comm.all_reduce(std::span<double>(xg), Reduce::max);
  const LmHeadConfig& head = config.head;
  const double tokens = config.train.loss == LossSum::mean ? head.scale_g_length : 1;
  return head_scale_line("head.scale_x", xg[0], 448, head.scale_x) +
         head_scale_line("head.scale_w", w, 448, head.scale_w) +
         head_scale_line("head.scale_g", xg[1] / tokens, 57344, head.scale_g);
}

}  // namespace

std::string evaluate(Context& context, const EvalOptions& options) {
  if (!options.hellaswag.empty()) return evaluate_hellaswag(context, options);
  Comm& comm = context.comm();
  const CheckpointHeader header = read_checkpoint_header(comm, options.checkpoint);
  const Config config = eval_config(options, header);
  comm.set_timeout(config.comm.timeout_seconds);
  context.open_device(config.run.reproducible);
  const RunData data = open_validation_data(comm, config);
  require_tokenizer_of_model(comm, options, header, config, data);
  const std::vector<std::uint64_t> bytes_of = bytes_of_tokens(options, header, config, comm, data);

  const TrainedWeights trained(comm, options.checkpoint, header, config, context.stream());
  const Config computed = computed_config(config);
  Model<Real> model(computed, trained.table, trained.weights, {}, data.end_of_text(), context.stream(),
                    context.upload_stream());
  context.require_room_for_gemms();
  Trace trace = untraced(comm, context.stream());
  const long step = header.progress.step;
  const int window = validation_windows(config, step).long_tokens;
  std::uint64_t bytes = 0;
  const auto count = [&](const Sequence& sequence) {
    for (const Token target : sequence.targets) bytes += target < bytes_of.size() ? bytes_of[target] : 0;
  };
  LmHeadMagnitudes largest;
  const double loss = validate(comm, trace, model, data, config, step, count, options.head_scales ? &largest : nullptr);
  bytes = comm.all_reduce(bytes, Reduce::sum);

  const auto tokens = static_cast<double>(config.validation.tokens);
  if (!std::isfinite(loss)) {
    throw Error(ExitCode::non_finite, fmt::format("{}: the loss is {}", options.checkpoint, std::abs(loss)),
                Scope::all_ranks);
  }
  std::string text = fmt::format("{}: step {}, {} tokens in sequences of {}, window {}\n", options.checkpoint,
                                 header.progress.step, config.validation.tokens, config.validation.length, window);
  text += fmt::format("loss           {} nats per token\nperplexity     {:.6g}\n", loss, std::exp(loss));
  if (bytes > 0) {
    const double bits = loss / std::numbers::ln2 * tokens / static_cast<double>(bytes);
    text += fmt::format("bits per byte  {:.6g}\n", bits);
  }
  if (options.head_scales) text += head_scale_lines(comm, largest, model.largest_lm_head_weight(), config);
  return text;
}

}  // namespace nanorun
