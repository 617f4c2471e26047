#include "src/command_line.hpp"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <map>

#include "kernels/attention/attention.hpp"
#include "kernels/ops.hpp"
#include "src/base/build.hpp"
#include "src/base/error.hpp"
#include "src/base/text.hpp"
#include "src/command_help.hpp"
#include "src/config/config.hpp"
#include "src/config/config_keys.hpp"
#include "src/help_format.hpp"

namespace nanorun {

namespace {

/// Why a file that is to be read or written cannot have this name; empty where it can.
std::string file_fault(const std::string& path) {
  const std::string fault = path.empty() ? "an empty name" : name_fault(path);
  return fault.empty() ? "" : fmt::format("\"{}\": {}", excerpt(path), fault);
}

/// file_fault() of shards to be written: what is left without ".h5" must name a file.
std::string output_fault(const std::string& output) {
  const std::string stem = output.ends_with(".h5") ? output.substr(0, output.size() - 3) : output;
  const std::string name = stem.substr(stem.rfind('/') + 1);  // the whole where there is no '/'
  const bool good = output.empty() || (!name.empty() && name != "." && name != "..");
  return good ? file_fault(output) : fmt::format("\"{}\": does not end in the name of a file", excerpt(output));
}

/// A check that a text is a number from `min` to `max`. CLI11's own check takes -1, and numbers that are too large, for
/// other numbers.
CLI::Validator whole_number(std::uint64_t min, std::uint64_t max) {
  const auto check = [min, max](const std::string& text) -> std::string {
    std::uint64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (rest == end && error == std::errc() && number >= min && number <= max) return "";
    return fmt::format("\"{}\": must be a whole number from {} to {}", excerpt(text), min, max);
  };
  // The limits of the type alone say nothing.
  const bool any = min == 0 && max == std::numeric_limits<std::uint64_t>::max();
  return {check, any ? "" : fmt::format("from {} to {}", min, max)};
}

/// A check that a text is a possible length of a sequence, which attention takes in whole blocks.
CLI::Validator sequence_length() {
  static constexpr int block = kernels::attention_block;
  const auto check = [](const std::string& text) -> std::string {
    std::uint64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (rest == end && error == std::errc() && number > 0 && number <= max_length && number % block == 0) return "";
    return fmt::format("\"{}\": must be a multiple of {} from {} to {}", excerpt(text), block, block, max_length);
  };
  return {check, fmt::format("from {} to {}", block, max_length)};
}

/// A check that a text is a number from 0 to `most`. CLI11's own check takes "nan".
CLI::Validator number_from_0_to(double most) {
  const auto check = [most](const std::string& text) -> std::string {
    double number = -1;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (rest == end && error == std::errc() && number >= 0 && number <= most) return "";
    return fmt::format("\"{}\": must be a number from 0 to {}", excerpt(text), most);
  };
  return {check, fmt::format("from 0 to {}", most)};
}

/// The bytes that a text such as "80GiB" or "1.5 TB" says; empty where it says none.
std::optional<double> parse_bytes(const std::string& text) {
  static const std::map<std::string_view, double> units = {
      {"", 1},      {"B", 1},        {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const auto unit = units.find(std::string_view(rest + (rest != end && *rest == ' ' ? 1 : 0), end));
  if (error != std::errc() || unit == units.end()) return {};
  const double bytes = number * unit->second;
  if (!(bytes >= 1 && bytes < 1e18)) return {};
  return bytes;
}

/// A check that parse_bytes() takes a text.
std::string memory_fault(const std::string& text) {
  if (parse_bytes(text)) return "";
  return fmt::format("\"{}\": must be a number of bytes, such as 80GiB or 94.5 GB", excerpt(text));
}

constexpr std::uint64_t max_ranks = 1 << 20;                        ///< which a dry run plans in seconds
constexpr std::uint64_t max_shard_tokens = std::uint64_t{1} << 60;  ///< so that the sum of two does not overflow

void add_train(CLI::App& app, CommandLine& line) {
  CLI::App* train = app.add_subcommand("train", "Train as a deck says");
  train->add_option("DECK", line.deck, "TOML file, or /dev/stdin; nanorun keys lists its keys")
      ->required()
      ->check(file_fault);
  train->add_option("OVERRIDE", line.overrides, "section.key=value, overrides the deck's");
  CLI::Option* dry_run =
      train->add_flag("--dry-run", line.dry_run, "Check deck and data, print what would be done, and end");
  train->add_option("--ranks", line.ranks, "Dry run for this many ranks, whatever number runs it")
      ->check(whole_number(1, max_ranks))
      ->needs(dry_run);
  train
      ->add_option("--ranks-per-node", line.ranks_per_node,
                   fmt::format("Dry run for nodes of this many ranks; without it of comm.ranks_per_node, or else {}",
                               ops::on_host ? "for one node" : "of 8"))
      ->check(whole_number(1, max_ranks))
      ->needs(dry_run);
  train
      ->add_option_function<std::string>(
          "--memory", [&line](const std::string& text) { line.memory = parse_bytes(text); },
          "Dry run: refuse what needs more memory on a rank, such as 80GiB")
      ->type_name("BYTES")
      ->check(memory_fault)
      ->needs(dry_run);
  train
      ->add_option("--machine", line.machines,
                   "Dry run: predict the step by the machine.json of a scaling study; may be repeated, for stages")
      ->allow_extra_args(false)
      ->needs(dry_run)
      ->type_name("FILE")
      ->check(file_fault);
  train->add_flag("--json", line.json, "Dry run: print its plan, with the tensors of the model, as JSON")
      ->needs(dry_run);
}

/// Throws where options of `nanorun shard` do not go together.
void check_shard_options(const ShardOptions& options, const CLI::Option& tokens_per_shard,
                         const CLI::Option& allow_invalid) {
  const bool has_inputs = !options.inputs.empty() || !options.list.empty();
  if (has_inputs == (options.synthetic > 0)) {
    throw CLI::ValidationError(has_inputs ? "--synthetic takes no inputs"
                                          : "no input: name files or give --list FILE, or --synthetic TOKENS");
  }
  const bool is_text = options.text || !options.tokenizer.empty();
  if (tokens_per_shard.count() > 0 && !is_text && options.synthetic == 0)
    throw CLI::ValidationError("--tokens-per-shard requires --text, --tokenizer or --synthetic");
  if (allow_invalid.count() > 0 && !is_text)
    throw CLI::ValidationError("--allow-invalid-utf8 requires --text or --tokenizer");
  if (options.end_of_text >= options.vocabulary) throw CLI::ValidationError("--end-of-text must be below --vocabulary");
}

void add_shard(CLI::App& app, CommandLine& line) {
  CLI::App* shard = app.add_subcommand("shard", "Convert .bin, text or JSONL files into token shards");
  ShardOptions& options = line.shard;
  shard->add_option("OUTPUT", options.output, "Shards become OUTPUT.h5, or OUTPUT_000000.h5 and so on")
      ->required()
      ->check(output_fault);
  shard->add_option("INPUT", options.inputs, ".bin files, or text with --text or --tokenizer")->check(file_fault);
  shard->add_option("--list", options.list, "File that names further inputs, one per line")
      ->type_name("FILE")
      ->check(file_fault);
  CLI::Option* text =
      shard->add_flag("--text", options.text, "Inputs are text: one document per file, one token per byte");
  CLI::Option* tokenizer =
      shard
          ->add_option(
              "--tokenizer", options.tokenizer,
              "Inputs are text: one document per file, in the tokens of this vocab.bpe, tokenizer.json or rank file")
          ->type_name("FILE")
          ->check(file_fault)
          ->excludes(text);
  shard->add_option("--field", options.field, "Inputs are JSONL: one document per line, the string under this key")
      ->type_name("KEY")
      ->check([](const std::string& key) { return key.empty() ? "\"\": an empty key" : ""; })
      ->needs(tokenizer);
  CLI::Option* skip_bad =
      shard->add_flag("--skip-bad", options.skip_bad, "Pass over documents that cannot be encoded, and list them");
  skip_bad->needs(tokenizer);
  CLI::Option* allow_invalid = shard->add_flag("--allow-invalid-utf8", options.allow_invalid_utf8,
                                               "Take text of which more than 0.5 % of the characters are not UTF-8");
  CLI::Option* synthetic =
      shard->add_option("--synthetic", options.synthetic, "Make this many tokens of a seeded source, without inputs")
          ->check(whole_number(1, max_shard_tokens))
          ->excludes(text)
          ->excludes(tokenizer);
  shard->add_option("--seed", options.seed, "Of the synthetic source")
      ->capture_default_str()
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      ->needs(synthetic);
  CLI::Option* tokens_per_shard =
      shard->add_option("--tokens-per-shard", options.tokens_per_shard, "Size at which a new shard begins")
          ->capture_default_str()
          ->check(whole_number(1, max_shard_tokens));
  shard->add_flag("--force", options.force, "Replace shards that exist");
  shard->add_option("--vocabulary", options.vocabulary, "Token ids are below this (.bin and --synthetic)")
      ->capture_default_str()
      ->check(whole_number(1, 65536))
      ->excludes(text)
      ->excludes(tokenizer);
  shard->add_option("--end-of-text", options.end_of_text, "Token that begins a document (.bin and --synthetic)")
      ->capture_default_str()
      ->check(whole_number(0, 65535))
      ->excludes(text)
      ->excludes(tokenizer);
  shard->callback(
      [&options, tokens_per_shard, allow_invalid] { check_shard_options(options, *tokens_per_shard, *allow_invalid); });
}

void add_export(CLI::App& app, CommandLine& line) {
  CLI::App* to =
      app.add_subcommand("export", "Convert a checkpoint for PyTorch, or a token shard back into a .bin file");
  ExportOptions& options = line.export_options;
  to->add_option("FILE", options.checkpoint, "Checkpoint or token shard")->required()->check(file_fault);
  to->add_option("OUTPUT", options.directory, "Directory for the files of a model, or .bin file")
      ->required()
      ->check(file_fault);
  to->add_flag("--bf16", options.bf16, "Round the weights to bf16 (checkpoints only)");
  to->add_option(
        "--end-of-text", options.end_of_text,
        "Token that begins a document (checkpoints only); without it that of the tokenizer, of bytes or of GPT-2")
      ->check(whole_number(0, 65535));
  to->add_option("--tokenizer", options.tokenizer,
                 "vocab.bpe, tokenizer.json or rank file that the model was trained with, to write for transformers "
                 "(checkpoints only)")
      ->type_name("FILE")
      ->check(file_fault);
  to->add_flag("--force", options.force, "Write into a directory that is not empty, or replace a file");
}

void add_import(CLI::App& app, CommandLine& line) {
  CLI::App* from = app.add_subcommand("import", "Convert an exported model into a checkpoint");
  ImportOptions& options = line.import_options;
  from->add_option("DIRECTORY", options.directory, "Holds model.safetensors and config.json")
      ->required()
      ->check(file_fault);
  from->add_option("CHECKPOINT", options.checkpoint, "File to write, for checkpoint.weights")
      ->required()
      ->check(file_fault);
  from->add_flag("--force", options.force, "Replace CHECKPOINT if it exists");
}

void add_verify(CLI::App& app, CommandLine& line) {
  CLI::App* verify = app.add_subcommand("verify", "Verify the checksums of token shards and checkpoints");
  verify->add_option("FILE", line.verify_files, "Token shards and checkpoints")->required()->check(file_fault);
}

void add_eval(CLI::App& app, CommandLine& line) {
  CLI::App* eval = app.add_subcommand("eval", "Print the loss of a checkpoint's model, or its accuracy on HellaSwag");
  EvalOptions& options = line.eval;
  eval->add_option("CHECKPOINT", options.checkpoint, "Checkpoint of a run")->required()->check(file_fault);
  CLI::Option* data =
      eval->add_option("--data", options.data, "Token shards; without it the validation shards of the run")
          ->type_name("FILE")
          ->check(file_fault);
  CLI::Option* tokens =
      eval->add_option("--tokens", options.tokens, "Tokens to read; without it validation.tokens of the run")
          ->check(whole_number(1, max_tokens));
  CLI::Option* allow_other = eval->add_flag("--allow-other-tokenizer", options.allow_other_tokenizer,
                                            "Read shards of another tokenizer than that of the model's training");
  eval->add_option("--length", options.length,
                   fmt::format("Tokens of a sequence, a multiple of {}; without it validation.length of the run",
                               kernels::attention_block))
      ->check(sequence_length());
  CLI::Option* tokenizer =
      eval->add_option("--tokenizer", options.tokenizer,
                       "Count bytes by this vocab.bpe, tokenizer.json or rank file, for the bits per byte")
          ->type_name("FILE")
          ->check(file_fault);
  CLI::Option* head_scales =
      eval->add_flag("--head-scales", options.head_scales,
                     "Also measure by what powers of two the LM head's operands in FP8 can be scaled");
  CLI::Option* hellaswag =
      eval->add_option("--hellaswag", options.hellaswag,
                       "Answer the questions of this file, llm.c's hellaswag_val.bin, instead of reading shards")
          ->type_name("FILE")
          ->check(file_fault)
          ->excludes(data)
          ->excludes(tokens)
          ->excludes(tokenizer)
          ->excludes(head_scales)
          ->excludes(allow_other);
  eval->add_option("--end-of-text", options.end_of_text,
                   "Token that begins a document; without it that of bytes or of GPT-2")
      ->check(whole_number(0, 65535))
      ->needs(hellaswag);
}

void add_sample(CLI::App& app, CommandLine& line) {
  CLI::App* sample = app.add_subcommand("sample", "Print text that a checkpoint's model writes");
  SampleOptions& options = line.sample;
  sample->add_option("CHECKPOINT", options.checkpoint, "Checkpoint of a run")->required()->check(file_fault);
  sample->add_option("--prompt", options.prompt, "What the text begins with");
  sample->add_option("--tokens", options.tokens, "Tokens that the model adds at most")
      ->capture_default_str()
      ->check(whole_number(1, std::numeric_limits<int>::max()));
  sample->add_option("--temperature", options.temperature, "0: always the likeliest token")
      ->capture_default_str()
      ->check(number_from_0_to(100));
  sample->add_option("--top-k", options.top_k, "Draw among the K likeliest tokens; 0: among all")
      ->capture_default_str()
      ->check(whole_number(0, 65536));
  sample->add_option("--seed", options.seed, "The same seed draws the same text")
      ->capture_default_str()
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()));
  sample
      ->add_option("--tokenizer", options.tokenizer,
                   "vocab.bpe, tokenizer.json or rank file that the model was trained with; without it a token is a "
                   "byte")
      ->type_name("FILE")
      ->check(file_fault);
}

Command chosen_command(const std::string& name) {
  if (name == "info") return Command::info;
  if (name == "train") return Command::train;
  if (name == "shard") return Command::shard;
  if (name == "export") return Command::export_file;
  if (name == "import") return Command::import_model;
  if (name == "verify") return Command::verify;
  if (name == "eval") return Command::eval;
  if (name == "sample") return Command::sample;
  return Command::print;
}

std::string subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return fmt::format("{}", fmt::join(names, ", "));
}

/// The chosen subcommand, or nullptr.
const CLI::App* chosen(const CLI::App& app) {
  const auto apps = app.get_subcommands();
  return apps.empty() ? nullptr : apps.front();
}

/// What is wrong with the first word that is no option, argument or subcommand; empty where there is none.
std::string unknown_word(const CLI::App& app) {
  for (const CLI::App* place : {&app, chosen(app)}) {
    for (const std::string& word : place == nullptr ? std::vector<std::string>() : place->remaining()) {
      if (word == "--") continue;  // CLI11 keeps it among them
      const std::string command = place == &app ? "nanorun" : "nanorun " + place->get_name();
      if (word.starts_with('-')) {
        const bool is_before = place == &app && chosen(app) != nullptr;
        return fmt::format("{} is not an option of {}{}", excerpt(word.substr(0, word.find('='))), command,
                           is_before ? "; those of a subcommand follow its name" : "");
      }
      if (place == &app)
        return fmt::format("\"{}\" is not one of the subcommands {}", excerpt(word), subcommand_names(app));
      return fmt::format("\"{}\" is an argument more than {} takes", excerpt(word), command);
    }
  }
  return "";
}

}  // namespace

void require_same_command(Comm& comm, const std::vector<std::string>& words) {
  std::string own;
  for (const std::string& word : words) own.append(word.c_str(), word.size() + 1);  // with its zero byte
  const std::string first = comm.broadcast(own);
  comm.together([&] {
    if (own == first) return;
    const auto differ = std::ranges::mismatch(own, first).in1 - own.begin();
    const std::size_t begin = differ == 0 ? 0 : own.rfind('\0', differ - 1) + 1;
    const auto word = [&](const std::string& all) {
      return begin < all.size() ? fmt::format("\"{}\"", excerpt(all.c_str() + begin)) : "nothing";
    };
    throw Error(ExitCode::usage,
                fmt::format("rank {} was started with {} where rank 0 was started with {}: start all ranks of a job "
                            "with one program and one command line",
                            comm.rank(), word(own), word(first)));
  });
}

CommandLine parse_command_line(const std::vector<std::string>& arguments) {
  CommandLine line;
  CLI::App app("The NanoGPT speedrun recipe as an MPI batch application", "nanorun");
  app.formatter(help_format());
  CLI::Option* version = app.set_version_flag("--version", build_name());
  bool all_versions = false;
  const CLI::Option* verbose =
      app.add_flag("--verbose", all_versions, "With --version: print what nanorun info prints")->needs(version);
  app.require_subcommand(1);
  add_train(app, line);
  add_shard(app, line);
  add_export(app, line);
  add_import(app, line);
  add_verify(app, line);
  app.add_subcommand("info", "Print the versions of program, compiler and libraries, and the GPUs");
  add_eval(app, line);
  add_sample(app, line);
  std::vector<std::string> key_words;
  app.add_subcommand("keys", "Print the reference of all keys of a deck as Markdown, or the keys that hold some words")
      ->add_option("WORD", key_words, "Print only keys that have it in their name, their values or their meaning");
  app.footer(std::string(help_footer("")));
  for (CLI::App* command : app.get_subcommands({})) command->footer(std::string(help_footer(command->get_name())));
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    line.command = chosen_command(chosen(app)->get_name());
    if (line.command == Command::print) line.text = key_words.empty() ? key_reference() : found_keys(key_words);
  } catch (const CLI::CallForHelp&) {
    line.text = app.help();
  } catch (const CLI::CallForVersion& name) {
    if (verbose->count() > 0) line.command = Command::info;
    line.text = fmt::format("{}\n", name.what());
  } catch (const CLI::ParseError& error) {
    const std::string command = chosen(app) ? " " + chosen(app)->get_name() : "";
    std::string problem = error.what();
    // "--name: 1 required TYPE:CHECK missing"
    if (problem.ends_with(" missing") && problem.find(": 1 required ") != std::string::npos)
      problem = problem.substr(0, problem.find(": ")) + ": its value is missing";
    // What the user believes to have said explains what is missing.
    if (const std::string unknown = unknown_word(app); !unknown.empty()) problem = unknown;
    throw Error(ExitCode::usage, fmt::format("{}; see nanorun{} --help", excerpt(problem, 500), command),
                Scope::all_ranks);
  }
  return line;
}

}  // namespace nanorun
