#include "src/commands/evaluate_hellaswag.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/error.hpp"
#include "src/config/schedule.hpp"
#include "src/model/topology.hpp"
#include "src/run/trained_model.hpp"

namespace nanorun {

namespace {

using kernels::Token;

/// Documents begin at multiples of this many tokens, so that windows which count blocks reach as far back as in a
/// sequence of one document.
constexpr int block = kernels::attention_block;

/// An ending behind its context, as a document of a sequence.
struct Document {
  std::size_t question, ending;
  int begin;  ///< in its sequence
};

/// Tokens that the model reads: the one that begins the document, the context, and the ending but for its last token.
int tokens_of(const Question& question, std::size_t ending) {
  return static_cast<int>(question.context.size() + question.endings[ending].size());
}

int padded_tokens(const Question& question, std::size_t ending) {
  return kernels::ceil_div(tokens_of(question, ending), block) * block;
}

/// All endings of all questions, in their order, in sequences of config.validation.length tokens.
std::vector<std::vector<Document>> pack(std::span<const Question> questions, const Config& config) {
  const int length = config.validation.length;
  const bool alone = reaches_over_documents(config.model);
  std::vector<std::vector<Document>> sequences;
  int filled = length;
  for (std::size_t q = 0; q < questions.size(); ++q) {
    for (std::size_t e = 0; e < hellaswag_endings; ++e) {
      const int padded = padded_tokens(questions[q], e);
      if (alone || filled + padded > length) {
        sequences.emplace_back();
        filled = 0;
      }
      sequences.back().push_back({q, e, filled});
      filled += padded;
    }
  }
  return sequences;
}

/// Tokens and targets of a sequence. What no document takes is filled with documents of one token.
struct Row {
  Row(int length, Token end_of_text) : tokens(length, end_of_text), targets(length, end_of_text) {}

  void write(const Question& question, const Document& document) {
    const auto put = [&](const std::vector<Token>& text, int first) {
      for (std::size_t i = 0; i < text.size(); ++i) targets[first + i] = text[i];
    };
    const int context = static_cast<int>(question.context.size());
    put(question.context, document.begin);
    put(question.endings[document.ending], document.begin + context);
    const int count = tokens_of(question, document.ending);
    std::copy_n(targets.begin() + document.begin, count - 1, tokens.begin() + document.begin + 1);
  }

  std::vector<Token> tokens, targets;
};

Config hellaswag_config(const EvalOptions& options, const CheckpointHeader& header) {
  std::vector<std::string> overrides = {"validation.tokens=0"};
  if (options.length) overrides.push_back(fmt::format("validation.length={}", *options.length));
  return trained_config(header, options.checkpoint, overrides);
}

std::size_t smallest(const EndingLosses& losses) { return std::ranges::min_element(losses) - losses.begin(); }

}  // namespace

int hellaswag_length(std::span<const Question> questions, const ModelConfig& model, int most) {
  std::int64_t longest = 0, all = 0;
  for (const Question& question : questions) {
    for (std::size_t e = 0; e < hellaswag_endings; ++e) {
      longest = std::max<std::int64_t>(longest, padded_tokens(question, e));
      all += padded_tokens(question, e);
    }
  }
  if (reaches_over_documents(model)) return static_cast<int>(longest);
  return static_cast<int>(std::max(longest, std::min<std::int64_t>(all, most / block * block)));
}

std::vector<EndingLosses> hellaswag_losses(Comm& comm, Trace& trace, Model<Real>& model, const Config& config,
                                           std::span<const Question> questions, Token end_of_text, long step) {
  const std::vector<std::vector<Document>> sequences = pack(questions, config);
  std::vector<double> sums(questions.size() * hellaswag_endings);
  for (std::size_t s = comm.rank(); s < sequences.size(); s += comm.size()) {
    const auto work = comm.watch_work();
    Row row(config.validation.length, end_of_text);
    for (const Document& document : sequences[s]) row.write(questions[document.question], document);
    const std::vector<double> losses = model.token_losses(trace, {row.tokens, row.targets}, step);
    for (const Document& document : sequences[s]) {
      const Question& question = questions[document.question];
      const auto end = losses.begin() + document.begin + tokens_of(question, document.ending);
      const auto begin = end - static_cast<std::ptrdiff_t>(question.endings[document.ending].size());
      sums[document.question * hellaswag_endings + document.ending] = std::accumulate(begin, end, 0.0);
    }
  }
  comm.all_reduce(std::span(sums), Reduce::sum);
  std::vector<EndingLosses> losses(questions.size());
  for (std::size_t i = 0; i < sums.size(); ++i) losses[i / hellaswag_endings][i % hellaswag_endings] = sums[i];
  return losses;
}

HellaswagScore hellaswag_score(std::span<const Question> questions, std::span<const EndingLosses> losses) {
  HellaswagScore score;
  for (std::size_t q = 0; q < questions.size(); ++q) {
    EndingLosses means = losses[q];
    for (std::size_t e = 0; e < hellaswag_endings; ++e) means[e] /= static_cast<double>(questions[q].endings[e].size());
    score.by_sum += smallest(losses[q]) == questions[q].label;
    score.by_mean += smallest(means) == questions[q].label;
  }
  return score;
}

std::string evaluate_hellaswag(Context& context, const EvalOptions& options) {
  Comm& comm = context.comm();
  const CheckpointHeader header = read_checkpoint_header(comm, options.checkpoint);
  Config config = hellaswag_config(options, header);
  comm.set_timeout(config.comm.timeout_seconds);
  if (comm.root() && !header.tokenizer.name.empty() && header.tokenizer.name != "gpt2") {
    complain(
        fmt::format("warning: llm.c's questions are in the tokens of gpt2, the model of {} was trained on those of "
                    "{}",
                    options.checkpoint, header.tokenizer.name));
  }
  Token end_of_text = 0;
  std::vector<Question> questions;
  comm.together([&] {
    end_of_text = end_of_text_of(options.checkpoint, config, options.end_of_text);
    questions = read_hellaswag(options.hellaswag, static_cast<std::uint64_t>(config.model.vocabulary));
  });
  config.data.packing = Packing::stream;  // questions share a sequence, each as a document
  config.validation.length = hellaswag_length(questions, config.model, config.validation.length);
  context.open_device(config.run.reproducible);

  const TrainedWeights trained(comm, options.checkpoint, header, config, context.stream());
  const Config computed = computed_config(config);
  Model<Real> model(computed, trained.table, trained.weights, {}, end_of_text, context.stream(),
                    context.upload_stream());
  context.require_room_for_gemms();
  Trace trace = untraced(comm, context.stream());
  const long step = header.progress.step;
  const int window = validation_windows(config, step).long_tokens;
  const std::vector<EndingLosses> losses = hellaswag_losses(comm, trace, model, config, questions, end_of_text, step);
  for (const EndingLosses& of_question : losses) {
    for (const double loss : of_question) {
      if (std::isfinite(loss)) continue;
      throw Error(ExitCode::non_finite, fmt::format("{}: the loss of an ending is {}", options.checkpoint, loss),
                  Scope::all_ranks);
    }
  }

  const HellaswagScore score = hellaswag_score(questions, losses);
  std::string text = fmt::format("{}: step {}, {} questions of {}, window {}\n", options.checkpoint,
                                 header.progress.step, questions.size(), options.hellaswag, window);
  const auto line = [&](const char* name, int right) {
    text += fmt::format("{:<14} {:.6f}  {} of {}\n", name, right / static_cast<double>(questions.size()), right,
                        questions.size());
  };
  line("acc", score.by_sum);
  line("acc_norm", score.by_mean);
  return text;
}

}  // namespace nanorun
