#include "src/commands/sample.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "src/base/error.hpp"
#include "src/config/schedule.hpp"
#include "src/model/model.hpp"
#include "src/run/log.hpp"
#include "src/run/trained_model.hpp"

namespace nanorun {

namespace {

/// Text to the model's tokens and back.
class Codec {
 public:
  /// Throws Error(usage, data).
  Codec(const SampleOptions& options, const CheckpointHeader& header, const Config& config) {
    const auto vocabulary = static_cast<std::uint64_t>(config.model.vocabulary);
    if (!options.tokenizer.empty()) {
      tokenizer_.emplace(options.tokenizer);
      require_own_tokenizer(header, config, options.checkpoint, *tokenizer_, options.tokenizer);
    } else if (vocabulary != text_vocabulary || !header.tokenizer.name.empty()) {
      throw Error(ExitCode::usage,
                  fmt::format("{}: has a vocabulary of {}: give the tokenizer that it was trained with (--tokenizer "
                              "FILE)",
                              options.checkpoint, vocabulary),
                  Scope::all_ranks);
    }
  }

  std::size_t vocabulary() const { return tokenizer_ ? tokenizer_->vocabulary() : text_vocabulary; }
  Token end_of_text() const { return tokenizer_ ? tokenizer_->end_of_text() : static_cast<Token>(text_end_of_text); }
  std::vector<Token> encode(const std::string& text) {
    if (tokenizer_) return tokenizer_->encode(text);
    return {reinterpret_cast<const unsigned char*>(text.data()),
            reinterpret_cast<const unsigned char*>(text.data()) + text.size()};
  }
  std::string decode(Token token) const {
    return tokenizer_ ? tokenizer_->decode({&token, 1}) : std::string(1, static_cast<char>(token));
  }

 private:
  std::optional<Tokenizer> tokenizer_;
};

/// Bytes at the end of a text that begin a character of UTF-8 and do not complete it; 0 where there are none.
std::size_t begun_character(std::string_view text) {
  constexpr std::size_t longest = 4;
  for (std::size_t size = 1; size < longest && size <= text.size(); ++size) {
    const auto byte = static_cast<unsigned char>(text[text.size() - size]);
    if ((byte & 0xc0) == 0x80) continue;  // within a character
    const std::size_t whole = byte >= 0xf0 && byte < 0xf5 ? 4 : byte >= 0xe0 && byte < 0xf0 ? 3 : byte >= 0xc2 ? 2 : 1;
    return byte >= 0xc2 && byte < 0xf5 && size < whole ? size : 0;
  }
  return 0;
}

/// Text to standard output, piece by piece. Tokens may end within a character, the text that is shown does not.
class Printer {
 public:
  /// False where nobody reads it any more.
  bool show(const std::string& piece) {
    waiting_ += piece;
    const std::size_t whole = waiting_.size() - begun_character(waiting_);
    if (whole == 0) return true;
    ends_line_ = waiting_[whole - 1] == '\n';
    const bool read = write_output(waiting_.substr(0, whole));
    waiting_.erase(0, whole);
    return read;
  }
  /// Leaves out a character that is not complete.
  void end() const {
    if (!ends_line_) write_output("\n");
  }

 private:
  std::string waiting_;
  bool ends_line_ = false;
};

/// The logits of what may follow a text, by a full forward pass over as many of its last tokens as a training sequence
/// has.
class Continuation {
 public:
  Continuation(Context& context, const Config& config, const TrainedWeights& trained, Token end_of_text, long step)
      : context_(context),
        config_(computed_config(config)),
        trained_(trained),
        end_of_text_(end_of_text),
        step_(step),
        trace_(untraced(context.comm(), context.stream())) {}

  std::vector<double> logits(std::span<const Token> text) {
    const auto longest = static_cast<std::size_t>(longest_length(config_));
    const auto seen = text.last(std::min(text.size(), longest));
    make_room(static_cast<int>(seen.size()));
    std::vector<Token> tokens(seen.begin(), seen.end());
    tokens.resize(config_.validation.length, end_of_text_);
    return model_->next_logits(trace_, tokens, step_, static_cast<int>(seen.size()) - 1);
  }

 private:
  /// Short texts take a model of short sequences, which is faster.
  void make_room(int tokens) {
    if (model_ && tokens <= config_.validation.length) return;
    model_.reset();
    int length = kernels::attention_block;
    while (length < tokens) length *= 2;
    config_.validation.length = std::min(length, longest_length(config_));
    model_.emplace(config_, trained_.table, trained_.weights, std::span<Model<Real>::Gradient>(), end_of_text_,
                   context_.stream(), context_.upload_stream());
  }

  Context& context_;
  Config config_;  ///< validation.length is that of the model's sequences
  const TrainedWeights& trained_;
  Token end_of_text_;
  long step_;  ///< step of the checkpoint
  Trace trace_;
  std::optional<Model<Real>> model_;
};

void require_finite(std::span<const double> logits, const std::string& checkpoint) {
  if (std::ranges::all_of(logits, [](double logit) { return std::isfinite(logit); })) return;
  throw Error(ExitCode::non_finite,
              fmt::format("{}: its model gives NaN in place of logits: its weights hold NaN or infinity, or overflow",
                          checkpoint),
              Scope::all_ranks);
}

/// Draws one of the tokens 0 to logits.size() - 1.
Token draw(std::span<const double> logits, const SampleOptions& options, std::mt19937_64& generator) {
  const auto likelier = [&](Token a, Token b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  std::vector<Token> ids(logits.size());
  std::iota(ids.begin(), ids.end(), Token{0});
  const std::size_t all = ids.size();
  const std::size_t count = options.top_k > 0 ? std::min<std::size_t>(options.top_k, all) : all;
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(), likelier);
  if (options.temperature == 0) return ids[0];
  std::vector<double> sums(count);
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i)
    sums[i] = sum += std::exp((logits[ids[i]] - logits[ids[0]]) / options.temperature);
  const double threshold = static_cast<double>(generator() >> 11) * 0x1p-53 * sum;
  return ids[std::min<std::size_t>(std::ranges::upper_bound(sums, threshold) - sums.begin(), count - 1)];
}

}  // namespace

void sample(Context& context, const SampleOptions& options) {
  Comm& comm = context.comm();
  if (comm.size() > 1) throw Error(ExitCode::usage, "nanorun sample runs on one rank", Scope::all_ranks);
  const CheckpointHeader header = read_checkpoint_header(comm, options.checkpoint);
  const Config config = trained_config(header, options.checkpoint);
  Codec codec(options, header, config);
  context.open_device(config.run.reproducible);
  const TrainedWeights trained(comm, options.checkpoint, header, config, context.stream());
  context.require_room_for_gemms();

  Continuation continuation(context, config, trained, codec.end_of_text(), header.progress.step);
  std::vector<Token> text = codec.encode(options.prompt);
  text.insert(text.begin(), codec.end_of_text());
  std::mt19937_64 generator(options.seed);
  Printer printer;
  bool read = printer.show(options.prompt);
  for (int i = 0; i < options.tokens && read; ++i) {
    const std::vector<double> logits = continuation.logits(text);
    require_finite(logits, options.checkpoint);
    const Token token = draw(std::span(logits).first(codec.vocabulary()), options, generator);
    if (token == codec.end_of_text()) break;
    text.push_back(token);
    read = printer.show(codec.decode(token));
  }
  printer.end();
}

}  // namespace nanorun
