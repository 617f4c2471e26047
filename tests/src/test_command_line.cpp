#include "src/command_line.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <sstream>

#include "src/config/config.hpp"
#include "tests/support/error_of.hpp"

using namespace nanorun;

namespace {

std::string usage_error_of(const std::vector<std::string>& arguments) {
  return error_on_all_ranks(ExitCode::usage, [&] { parse_command_line(arguments); });
}

using Strings = std::vector<std::string>;

}  // namespace

TEST(CommandLine, Train) {
  const CommandLine line = parse_command_line({"train", "d.toml", "train.steps=5", "--dry-run", "run.name=a b"});
  EXPECT_EQ(line.command, Command::train);
  EXPECT_EQ(line.deck, "d.toml");
  EXPECT_EQ(line.overrides, (Strings{"train.steps=5", "run.name=a b"}));
  EXPECT_TRUE(line.dry_run);
  EXPECT_FALSE(parse_command_line({"train", "d.toml"}).dry_run);
}

TEST(CommandLine, DryRunForOtherRanks) {
  const CommandLine line = parse_command_line({"train", "d.toml", "--dry-run", "--ranks", "8", "train.steps=5"});
  EXPECT_EQ(line.ranks, 8);
  EXPECT_EQ(line.overrides, (Strings{"train.steps=5"}));
  EXPECT_EQ(parse_command_line({"train", "d.toml", "--dry-run"}).ranks, std::nullopt);
  EXPECT_EQ(usage_error_of({"train", "d.toml", "--ranks", "8"}),
            "--ranks requires --dry-run; see nanorun train --help");
  for (const char* ranks : {"0", "-1", "2147483648", "two", ""}) {
    EXPECT_NE(usage_error_of({"train", "d.toml", "--dry-run", "--ranks", ranks}).find("--ranks"), std::string::npos);
  }
}

TEST(CommandLine, DryRunForOtherMachines) {
  const auto parse = [](const char* option, const char* value) {
    return parse_command_line({"train", "d.toml", "--dry-run", option, value});
  };
  EXPECT_EQ(parse("--ranks-per-node", "8").ranks_per_node, 8);
  EXPECT_EQ(parse("--ranks", "8").ranks_per_node, std::nullopt);
  EXPECT_EQ(parse("--ranks", "8").memory, std::nullopt);
  for (const auto& [text, bytes] : std::map<const char*, double>{{"80GiB", 80. * (1 << 30)},
                                                                 {"94.5 GB", 94.5e9},
                                                                 {"1.5TB", 1.5e12},
                                                                 {"512MiB", 512. * (1 << 20)},
                                                                 {"4096", 4096},
                                                                 {"2 kB", 2000}}) {
    EXPECT_EQ(parse("--memory", text).memory, bytes) << text;
  }
  for (const char* text : {"", "0", "-1", "GiB", "80G", "80  GiB", "80gib", "nan", "1e30", "8GiB8"}) {
    EXPECT_NE(usage_error_of({"train", "d.toml", "--dry-run", "--memory", text}).find("a number of bytes, such as"),
              std::string::npos)
        << text;
  }
  for (const char* option : {"--ranks-per-node", "--memory"}) {
    EXPECT_EQ(usage_error_of({"train", "d.toml", option, "8"}),
              std::string(option) + " requires --dry-run; see nanorun train --help");
  }
}

TEST(CommandLine, PlanAsJson) {
  EXPECT_TRUE(parse_command_line({"train", "d.toml", "--dry-run", "--json"}).json);
  EXPECT_FALSE(parse_command_line({"train", "d.toml", "--dry-run"}).json);
  EXPECT_EQ(usage_error_of({"train", "d.toml", "--json"}), "--json requires --dry-run; see nanorun train --help");
}

TEST(CommandLine, OverridesAreTakenAsWritten) {
  const Strings overrides = {"data.train=[\"a.h5\", \"b.h5\"]", "model.layers_without_attention=[7]",
                             "trace.json_steps=[]", "run.name=\"x\""};
  Strings arguments = {"train", "d.toml"};
  arguments.insert(arguments.end(), overrides.begin(), overrides.end());
  EXPECT_EQ(parse_command_line(arguments).overrides, overrides);
}

TEST(CommandLine, Shard) {
  CommandLine line =
      parse_command_line({"shard", "out", "a.bin", "b.bin", "--vocabulary", "100", "--end-of-text", "99"});
  EXPECT_EQ(line.command, Command::shard);
  EXPECT_EQ(line.shard.output, "out");
  EXPECT_EQ(line.shard.inputs, (Strings{"a.bin", "b.bin"}));
  EXPECT_FALSE(line.shard.text);
  EXPECT_EQ(line.shard.vocabulary, 100u);
  EXPECT_EQ(line.shard.end_of_text, 99u);

  line = parse_command_line({"shard", "out", "--text", "--list", "names.txt", "--tokens-per-shard", "5000000000"});
  EXPECT_TRUE(line.shard.text);
  EXPECT_EQ(line.shard.list, "names.txt");
  EXPECT_EQ(line.shard.tokens_per_shard, 5000000000u);
  EXPECT_EQ(line.shard.vocabulary, ShardOptions{}.vocabulary);

  line = parse_command_line(
      {"shard", "out", "a.jsonl", "--tokenizer", "vocab.bpe", "--field", "the text", "--tokens-per-shard", "7"});
  EXPECT_FALSE(line.shard.text);
  EXPECT_EQ(line.shard.tokenizer, "vocab.bpe");
  EXPECT_EQ(line.shard.field, "the text");
  EXPECT_EQ(line.shard.tokens_per_shard, 7u);
  EXPECT_FALSE(line.shard.skip_bad || line.shard.allow_invalid_utf8);

  line = parse_command_line({"shard", "out", "a.txt", "--tokenizer", "v", "--skip-bad", "--allow-invalid-utf8"});
  EXPECT_TRUE(line.shard.skip_bad && line.shard.allow_invalid_utf8);
}

TEST(CommandLine, ExportAndVerify) {
  CommandLine line = parse_command_line({"export", "s.h5", "s.bin"});
  EXPECT_EQ(line.command, Command::export_file);
  EXPECT_EQ(line.export_options.checkpoint, "s.h5");
  EXPECT_EQ(line.export_options.directory, "s.bin");

  line = parse_command_line({"verify", "a.h5", "b.h5"});
  EXPECT_EQ(line.command, Command::verify);
  EXPECT_EQ(line.verify_files, (Strings{"a.h5", "b.h5"}));
}

TEST(CommandLine, WhatIsDoneWithCheckpoints) {
  CommandLine line = parse_command_line({"eval", "c.h5", "--data", "a.h5", "b*.h5", "--tokens", "1024"});
  EXPECT_EQ(line.command, Command::eval);
  EXPECT_EQ(line.eval.checkpoint, "c.h5");
  EXPECT_EQ(line.eval.data, (Strings{"a.h5", "b*.h5"}));
  EXPECT_EQ(line.eval.tokens, 1024);
  EXPECT_FALSE(line.eval.length);
  EXPECT_FALSE(line.eval.allow_other_tokenizer);
  EXPECT_TRUE(parse_command_line({"eval", "c.h5", "--allow-other-tokenizer"}).eval.allow_other_tokenizer);

  line = parse_command_line({"sample", "c.h5", "--prompt", "-x y", "--temperature", "0.5", "--seed", "7"});
  EXPECT_EQ(line.command, Command::sample);
  EXPECT_EQ(line.sample.prompt, "-x y");
  EXPECT_EQ(line.sample.temperature, 0.5);
  EXPECT_EQ(line.sample.seed, 7u);

  line = parse_command_line({"export", "c.h5", "model", "--bf16", "--end-of-text", "9"});
  EXPECT_TRUE(line.export_options.bf16);
  EXPECT_EQ(line.export_options.end_of_text, 9);
  EXPECT_EQ(line.export_options.tokenizer, "");
  line = parse_command_line({"export", "c.h5", "model", "--tokenizer", "vocab.bpe"});
  EXPECT_EQ(line.export_options.tokenizer, "vocab.bpe");

  line = parse_command_line({"import", "model", "c.h5"});
  EXPECT_EQ(line.command, Command::import_model);
  EXPECT_EQ(line.import_options.directory, "model");
  EXPECT_EQ(line.import_options.checkpoint, "c.h5");
}

TEST(CommandLine, PrintsHelpVersionAndKeys) {
  CommandLine line = parse_command_line({"--help"});
  EXPECT_EQ(line.command, Command::print);
  for (const char* command : {"train", "shard", "export", "import", "verify", "info", "eval", "sample", "keys"}) {
    EXPECT_NE(line.text.find(command), std::string::npos) << command;
  }

  line = parse_command_line({"train", "--help"});
  EXPECT_EQ(line.command, Command::print);
  EXPECT_NE(line.text.find("--dry-run"), std::string::npos);

  line = parse_command_line({"--version"});
  EXPECT_EQ(line.command, Command::print);
  const std::regex name(R"(nanorun \d+\.\d+\.\d+ \(([^, ]+, )?\w+ [\d.]+, (CPU build|CUDA \d+\.\d+)\)\n)");
  EXPECT_TRUE(std::regex_match(line.text, name)) << line.text;

  EXPECT_EQ(parse_command_line({"info"}).command, Command::info);
  EXPECT_EQ(parse_command_line({"--version"}).command, Command::print);
  EXPECT_EQ(parse_command_line({"--version", "--verbose"}).command, Command::info);
  EXPECT_EQ(parse_command_line({"--verbose", "--version"}).command, Command::info);
  EXPECT_NE(usage_error_of({"--verbose", "keys"}).find("--verbose requires --version"), std::string::npos);

  line = parse_command_line({"keys"});
  EXPECT_EQ(line.command, Command::print);
  EXPECT_EQ(line.text, key_reference());
}

TEST(CommandLine, KeysAreSearched) {
  EXPECT_EQ(parse_command_line({"keys", "log_every"}).text,
            "run.log_every = 10\n    steps between lines of the log\n"
            "    allowed: 32-bit integer, from 1 to 10000000; operates\n");
  EXPECT_EQ(parse_command_line({"keys", "LOG", "between", "lines"}).text,
            parse_command_line({"keys", "log_every"}).text);
  const std::string stages = parse_command_line({"keys", "stage.n.length"}).text;
  EXPECT_EQ(stages.find("stage.N.length = "), 0) << stages;
  EXPECT_NE(parse_command_line({"keys", "e5m2"}).text.find("\ncomm.gradient_scale = "), std::string::npos);
  EXPECT_EQ(
      error_on_all_ranks(ExitCode::usage,
                         [] {
                           parse_command_line({"keys", "log_every", "muon"});
                         }),
      "no key has \"log_every\" and \"muon\" in its name, its values or its meaning; nanorun keys prints all keys");
}

TEST(CommandLine, HelpEndsWithExamplesAndExitCodes) {
  for (const char* command : {"", "train", "shard", "export", "import", "verify", "info", "eval", "sample", "keys"}) {
    const std::string help = parse_command_line(*command ? Strings{command, "--help"} : Strings{"--help"}).text;
    const std::string title = "\nExamples:\n";
    const std::size_t begin = help.find(title);
    ASSERT_NE(begin, std::string::npos) << help;
    std::istringstream lines(help.substr(begin + title.size()));
    const std::regex example(fmt::format("  (mpirun -n [0-9]+ )?nanorun {}\\b.*", command));
    for (int i = 0; i < 2; ++i) {
      std::string said, shown;
      std::getline(std::getline(lines, said), shown);
      EXPECT_TRUE(said.starts_with("  # ") && std::regex_match(shown, example)) << said << shown;
    }
    const std::size_t codes = help.find("\nExit codes");
    ASSERT_NE(codes, std::string::npos) << help;
    for (const char* code : {"0 ", "1 ", "2 "})
      EXPECT_NE(help.find(std::string("\n  ") + code, codes), std::string::npos) << help;
  }
}

TEST(CommandLine, HelpSaysInWordsWhatOptionsTake) {
  const auto has = [](const char* command, const std::string& words) {
    const std::string help = parse_command_line({command, "--help"}).text;
    const std::string in_a_line = std::regex_replace(help, std::regex("\\s+"), " ");  // whatever the columns
    EXPECT_NE(in_a_line.find(" " + words + " "), std::string::npos) << words << " is not in\n" << help;
  };
  has("train", "Arguments: DECK TOML file, or /dev/stdin; nanorun keys lists its keys OVERRIDE");
  has("train",
      "--ranks N Dry run for this many ranks, whatever number runs it; from 1 to 1048576; only with --dry-run");
  has("sample", "--temperature X 0: always the likeliest token; from 0 to 100; by default 1 --top-k");
  has("shard", "--seed N Of the synthetic source; by default 0; only with --synthetic");
  has("shard",
      "--text Inputs are text: one document per file, one token per byte; not with --end-of-text, --synthetic, "
      "--tokenizer or --vocabulary");
  has("eval", "--data FILE... Token shards; without it the validation shards of the run; not with --hellaswag");
}

TEST(CommandLine, WrongUsageIsOneLineWithAHint) {
  EXPECT_EQ(usage_error_of({"eval", "c.h5", "--tokens"}), "--tokens: its value is missing; see nanorun eval --help");
  EXPECT_EQ(usage_error_of({"shard", "out", "--list"}), "--list: its value is missing; see nanorun shard --help");
  EXPECT_EQ(usage_error_of({}), "A subcommand is required; see nanorun --help");
  EXPECT_EQ(usage_error_of({"trian", "d.toml"}),
            "\"trian\" is not one of the subcommands train, shard, export, import, verify, info, eval, sample, keys; "
            "see nanorun --help");
  EXPECT_EQ(usage_error_of({"train"}), "DECK is required; see nanorun train --help");
  EXPECT_EQ(usage_error_of({"export", "s.h5"}), "OUTPUT is required; see nanorun export --help");
  EXPECT_EQ(usage_error_of({"verify"}), "FILE is required; see nanorun verify --help");
  EXPECT_EQ(usage_error_of({"shard", "out"}),
            "no input: name files or give --list FILE, or --synthetic TOKENS; see nanorun shard --help");
  EXPECT_EQ(usage_error_of({"shard", "out", "a.bin", "--end-of-text", "100", "--vocabulary", "100"}),
            "--end-of-text must be below --vocabulary; see nanorun shard --help");
  for (const Strings& arguments : {Strings{"train", "d.toml", "--fast"},
                                   {"shard", "out", "a.bin", "--vocabulary", "65537"},
                                   {"shard", "out", "a.txt", "--text", "--vocabulary", "100"},
                                   {"shard", "out", "a.bin", "--tokens-per-shard", "9"},
                                   {"shard", "out", "a.txt", "--text", "--tokens-per-shard", "0"},
                                   {"shard", "out", "a.txt", "--text", "--tokenizer", "vocab.bpe"},
                                   {"shard", "out", "a.txt", "--tokenizer", ""},
                                   {"shard", "out", "a.txt", "--tokenizer", "t", "--vocabulary", "100"},
                                   {"shard", "out", "a.txt", "--tokenizer", "t", "--end-of-text", "100"},
                                   {"shard", "out", "a.txt", "--tokenizer", "t", "--field", ""},
                                   {"shard", "out", "a.jsonl", "--field", "text"},
                                   {"keys", "--extra"}}) {
    EXPECT_NE(usage_error_of(arguments).find("; see nanorun"), std::string::npos);
  }
}

/// Whatever else is wrong or missing.
TEST(CommandLine, UnknownWordsAreNamedFirst) {
  for (const std::string command : {"train", "shard", "export", "import", "verify", "info", "eval", "sample", "keys"}) {
    const std::string said = "--foo is not an option of nanorun " + command + "; see nanorun " + command + " --help";
    EXPECT_EQ(usage_error_of({command, "--foo"}), said);
    EXPECT_EQ(usage_error_of({command, "--foo=bar"}), said);
    EXPECT_EQ(usage_error_of({command, "--foo", "bar", "--fast"}), said);
    EXPECT_EQ(usage_error_of({command, "--foo", "a", "b", "c"}), said);
    EXPECT_EQ(parse_command_line({command, "--foo", "--help"}).command, Command::print);
  }
  for (const Strings& arguments : {Strings{"train", "--foo", "--ranks", "zero"},
                                   {"train", "d.toml", "--memory", "8GB", "--foo"},
                                   {"train", "", "--foo"},
                                   {"train", "--foo", "--ranks"}}) {
    EXPECT_EQ(usage_error_of(arguments), "--foo is not an option of nanorun train; see nanorun train --help");
  }
  EXPECT_EQ(usage_error_of({"shard", "--text", "--tokenizer", "t", "-x"}),
            "-x is not an option of nanorun shard; see nanorun shard --help");
  for (const auto& [command, arguments] : std::map<std::string, Strings>{{"export", {"a", "b"}},
                                                                         {"import", {"a", "b"}},
                                                                         {"info", {}},
                                                                         {"eval", {"a", "--length", "0"}},
                                                                         {"sample", {"a"}}}) {
    Strings words = {command};
    words.insert(words.end(), arguments.begin(), arguments.end());
    words.push_back("more");
    EXPECT_EQ(usage_error_of(words), fmt::format("\"more\" is an argument more than nanorun {0} takes; see nanorun {0} "
                                                 "--help",
                                                 command));
  }
  EXPECT_EQ(usage_error_of({"--foo"}), "--foo is not an option of nanorun; see nanorun --help");
  EXPECT_EQ(usage_error_of({"--verbose", "--foo"}), "--foo is not an option of nanorun; see nanorun --help");
  EXPECT_EQ(usage_error_of({"--dry-run", "train", "d.toml"}),
            "--dry-run is not an option of nanorun; those of a subcommand follow its name; see nanorun train --help");
  EXPECT_EQ(usage_error_of({"--"}), "A subcommand is required; see nanorun --help");
  EXPECT_EQ(usage_error_of({"train", "--"}), "DECK is required; see nanorun train --help");
  EXPECT_EQ(parse_command_line({"train", "--", "--foo"}).deck, "--foo");
}

TEST(CommandLine, NumbersThatDoNotFitAreRefused) {
  for (const char* number :
       {"18446744073709551616", "18446744073709551615", "-1", "-18446744073709551615", "1e6", ""}) {
    EXPECT_EQ(usage_error_of({"shard", "out", "a.txt", "--text", "--tokens-per-shard", number}),
              "--tokens-per-shard: \"" + std::string(number) +
                  "\": must be a whole number from 1 to 1152921504606846976; see nanorun shard --help");
  }
  EXPECT_NE(usage_error_of({"train", "d.toml", "--dry-run", "--ranks", "4294967297"}).find("from 1 to 1048576"),
            std::string::npos);
}

TEST(CommandLine, FilesHaveNames) {
  for (const auto& [arguments, said] :
       {std::pair<Strings, std::string>({"train", ""}, "DECK: \"\": an empty name; see nanorun train --help"),
        {{"shard", "", "a"}, "OUTPUT: \"\": an empty name; see nanorun shard --help"},
        {{"shard", "o", "a", ""}, "INPUT: \"\": an empty name; see nanorun shard --help"},
        {{"shard", "o", "--list", ""}, "--list: \"\": an empty name; see nanorun shard --help"},
        {{"export", "", "b"}, "FILE: \"\": an empty name; see nanorun export --help"},
        {{"export", "s", ""}, "OUTPUT: \"\": an empty name; see nanorun export --help"},
        {{"verify", "a", ""}, "FILE: \"\": an empty name; see nanorun verify --help"}}) {
    EXPECT_EQ(usage_error_of(arguments), said);
  }
  for (const char* output : {".", "..", "/", "a/", "a/.", "../..", ".h5", "a/.h5", "/.h5", "..h5"}) {
    EXPECT_EQ(usage_error_of({"shard", output, "a.bin"}),
              fmt::format("OUTPUT: \"{}\": does not end in the name of a file; see nanorun shard --help", output));
  }
  for (const char* output : {"a", ".a", "a.h5", "...", "./a", "../a.h5"}) {
    EXPECT_EQ(parse_command_line({"shard", output, "a.bin"}).shard.output, output);
  }
}

TEST(CommandLine, FilesAreNotForShellsToExpand) {
  for (const Strings& arguments : {Strings{"train", "~/x"},
                                   {"shard", "~/x", "a"},
                                   {"shard", "o", "a", "~/x"},
                                   {"shard", "o", "--list", "~/x"},
                                   {"export", "~/x", "b"},
                                   {"export", "s", "~/x"},
                                   {"verify", "a", "~/x"}}) {
    EXPECT_NE(usage_error_of(arguments).find(": \"~/x\": nothing has expanded it: write the full path, or in a shell "),
              std::string::npos);
  }
  EXPECT_EQ(parse_command_line({"verify", "./~/x"}).verify_files, Strings{"./~/x"});
}

TEST(CommandLine, FilesHaveNoHiddenCharacters) {
  EXPECT_EQ(usage_error_of({"verify", "a", "b\u202e5h.\x1b"}),
            "FILE: \"b\\u202E5h.\\u001B\": it contains U+202E, a control or invisible character; see nanorun verify "
            "--help");
  EXPECT_NE(usage_error_of({"shard", "a\nb", "a"}).find("OUTPUT: \"a\\nb\": it contains U+000A"), std::string::npos);
  EXPECT_EQ(parse_command_line({"verify", "gr\xf6\xdf"}).verify_files, Strings{"gr\xf6\xdf"});  // not UTF-8
}
