// What is refused in a deck or an override.

#include "src/config/config.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "src/base/text.hpp"
#include "tests/support/deck_errors.hpp"

using namespace nanorun;

namespace {

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

}  // namespace

TEST(Config, UnknownKeyNamesTheNearest) {
  EXPECT_EQ(deck_error("[model]\nwidth = 768\nlayer = 3\n"),
            "d.toml:3: unknown key model.layer; nearest known key: model.layers");
  EXPECT_EQ(deck_error("[model]\nsteps = 3\n"), "d.toml:2: unknown key model.steps; nearest known key: train.steps");
  EXPECT_EQ(deck_error("[train]\nlenght = 3\n"), "d.toml:2: unknown key train.lenght; nearest known key: train.length");
  EXPECT_EQ(deck_error("[train]\nstep = 3\n"), "d.toml:2: unknown key train.step; nearest known key: train.steps");
  EXPECT_EQ(deck_error("[optimizer]\nlr = 1\n"),
            "d.toml:2: unknown key optimizer.lr; nearest known key: optimizer.muon_lr");
  EXPECT_EQ(deck_error("[optimizer]\nadam_beta = 1\n"),
            "d.toml:2: unknown key optimizer.adam_beta; nearest known key: optimizer.adam_beta1");
  EXPECT_EQ(deck_error("[train]\nlr = 1\n"),
            "d.toml:2: unknown key train.lr; nearest known key: train.final_lr_factor");
  EXPECT_EQ(deck_error("[window]\nlr = 1\n"), "d.toml:2: unknown key window.lr; nearest known key: group.N.lr");
  EXPECT_EQ(deck_error("[checkpoint]\nsoftcap = 1\n"),
            "d.toml:2: unknown key checkpoint.softcap; nearest known key: model.softcap");
  EXPECT_EQ(deck_error("\nsteps = 3\n"),
            "d.toml:2: unknown key steps outside any section; nearest known key: train.steps");
  EXPECT_EQ(deck_error("[model]\n[model.head]\nx = 1\n"),
            "d.toml:2: unknown key model.head; nearest known key: model.heads");
}

TEST(Config, UnknownSectionNamesTheNearest) {
  EXPECT_EQ(deck_error("[run]\n[modle]\nwidth = 768\n"),
            "d.toml:2: unknown section [modle]; nearest known section: [model]");
  EXPECT_EQ(deck_error("\n\nmodel = 3\n"), "d.toml:3: model is a section: write [model]");
}

TEST(Config, WrongTypeNamesWhatIsAllowed) {
  EXPECT_EQ(deck_error("[model]\n\nheads = \"six\"\n"),
            "d.toml:3: model.heads: got 'six', allowed: 32-bit integer, from 1 to 1024");
  EXPECT_EQ(deck_error("[model]\nheads = 6.0\n"),
            "d.toml:2: model.heads: got 6.0, allowed: 32-bit integer, from 1 to 1024");
  EXPECT_EQ(deck_error("[model]\nsoftcap = true\n"),
            "d.toml:2: model.softcap: got true, allowed: number, > 0 and <= 75");
  EXPECT_EQ(deck_error("[model]\nzero_outputs = 1\n"), "d.toml:2: model.zero_outputs: got 1, allowed: true or false");
  EXPECT_EQ(deck_error("[run]\noutputs = 1\n"),
            "d.toml:2: run.outputs: got 1, allowed: string, not empty, without control or invisible characters, not "
            "beginning with ~ or $; put the string in quotes: outputs = \"...\"");
  EXPECT_EQ(deck_error("[trace]\njson_steps = [1, \"2\"]\n"),
            "d.toml:2: trace.json_steps: got [ 1, '2' ], allowed: list of 32-bit integers, each >= 0");
  EXPECT_EQ(deck_error("[window]\nkind = 3\n"),
            "d.toml:2: window.kind: got 3, allowed: one of \"token\" \"tokens_before\" \"block\"");
}

TEST(Config, ImpossibleValueNamesWhatIsAllowed) {
  EXPECT_EQ(deck_error("[head]\nprecision = \"fp16\"\n"),
            "d.toml:2: head.precision: got 'fp16', allowed: one of \"auto\" \"fp32\" \"bf16\" \"fp8\"");
  EXPECT_EQ(deck_error("[train]\nlength = 1000\n"),
            "d.toml:2: train.length: got 1000, allowed: 32-bit integer, a multiple of 128 from 128 to 4194304");
  EXPECT_EQ(deck_error("[train]\ncooldown = 1.5\n"), "d.toml:2: train.cooldown: got 1.5, allowed: number, from 0 to 1");
  EXPECT_EQ(deck_error("[train]\nsteps = 4294967297\n"),
            "d.toml:2: train.steps: got 4294967297, allowed: 32-bit integer, from 1 to 10000000");
  EXPECT_EQ(deck_error("[optimizer]\nadam_beta1 = 1\n"),
            "d.toml:2: optimizer.adam_beta1: got 1, allowed: number, >= 0 and < 1");
  EXPECT_EQ(deck_error("[optimizer]\nmuon_lr = nan\n"), "d.toml:2: optimizer.muon_lr: got nan, allowed: number, >= 0");
  EXPECT_EQ(deck_error("[optimizer]\nmuon_lr = inf\n"), "d.toml:2: optimizer.muon_lr: got inf, allowed: number, >= 0");
  EXPECT_EQ(deck_error("[window]\nlayers = \"LSX\"\n"),
            "d.toml:2: window.layers: got 'LSX', allowed: string, of letters L and S");
  EXPECT_EQ(deck_error("[trace]\njson_steps = [3, -1]\n"),
            "d.toml:2: trace.json_steps: got [ 3, -1 ], allowed: list of 32-bit integers, each >= 0");
  EXPECT_EQ(deck_error("[model]\nlayers = 0\n"),
            "d.toml:2: model.layers: got 0, allowed: 32-bit integer, from 1 to 1024");
  EXPECT_EQ(deck_error("[model]\nhead_dim = 6\n"),
            "d.toml:2: model.head_dim: got 6, allowed: 32-bit integer, a multiple of 4 from 4 to 4096");
  EXPECT_EQ(deck_error("[run]\nname = \"a/b\"\n").substr(0, 49), "d.toml:2: run.name: got 'a/b', allowed: string, n");
}

TEST(Config, ValuesStandOnOneLine) {
  const auto got = [](const std::string& value) {
    const std::string error = deck_error("[optimizer]\nmuon_lr = " + value + "\n"), begin = "got ";
    const std::size_t at = error.find(begin) + begin.size();
    return error.substr(at, error.find(", allowed") - at);
  };
  EXPECT_EQ(got("[nan, 1]"), "[ nan, 1 ]");
  EXPECT_EQ(got("[[1, inf], 0x10, []]"), "[ [ 1, inf ], 0x10, [] ]");
  EXPECT_EQ(got("{a = 1, b = [nan, \"x\"], c = {}}"), "{ a = 1, b = [ nan, 'x' ], c = {} }");
  EXPECT_EQ(got("[" + repeat("1000000000, ", 20) + "1]"), "[ " + repeat("1000000000, ", 4) + "1000000...");
}

TEST(Config, SyntaxErrorNamesItsLine) {
  EXPECT_TRUE(deck_error("[model]\nwidth = \n").starts_with("d.toml:2: syntax error: "));
  EXPECT_TRUE(deck_error("[model\n").starts_with("d.toml:1: syntax error: "));
  EXPECT_TRUE(deck_error("[model]\nwidth = 1\nwidth = 2\n").starts_with("d.toml:3: syntax error: "));
  EXPECT_TRUE(deck_error("[model]\nwidth = 1 2\n").starts_with("d.toml:2: syntax error: "));
  EXPECT_TRUE(deck_error("[run]\nseed = 9223372036854775808\n").starts_with("d.toml:2: syntax error: "));
}

TEST(Config, NestingIsBounded) {
  const std::string arrays = repeat("[", 50000) + repeat("]", 50000),
                    tables = repeat("{a=", 50000) + "1" + repeat("}", 50000), keys = "a" + repeat(".a", 50000),
                    quoted = "'a'" + repeat(" . \"a\"", 50000), mixed = repeat("{a.a.a=[", 50000);
  const std::string message = "brackets or dotted keys nest more than 16 deep";
  for (const std::string& text :
       {"x = " + arrays, "x = " + tables, keys + " = 1", quoted + " = 1", "[" + keys + "]", "[[" + quoted + "]]",
        "x = " + mixed, "x = {" + keys + " = 1}", "x = [{}, {" + keys + "=1}]"}) {
    EXPECT_EQ(deck_error("# [[[\n\n[run]\n" + text + "\n"), "d.toml:4: " + message) << text.substr(0, 20);
  }
  for (const std::string& value : {arrays, tables, mixed, "1\n[" + keys + "]", "{" + keys + " = 1}"}) {
    const std::string error = override_error("train.steps=" + value);
    EXPECT_TRUE(error.ends_with("...: " + message)) << error;
    EXPECT_LT(error.size(), 300u);
  }
  EXPECT_TRUE(deck_error("[trace]\njson_steps = " + repeat("[", 17) + repeat("]", 17)).ends_with(message));
  EXPECT_EQ(
      deck_error("[trace]\njson_steps = " + repeat("[", 16) + repeat("]", 16)),
      "d.toml:2: trace.json_steps: got [ [ [ [ [ [ [ [ [ [ [ [ [ [ [ [] ] ] ] ] ] ] ] ] ] ] ] ] ..., allowed: list of "
      "32-bit integers, each >= 0");
}

TEST(Config, BracketsAndDotsOfStringsAndCommentsDoNotNest) {
  const std::string b = repeat("[", 20) + repeat("{", 20) + repeat(".", 20);
  const std::string deck = "# " + b + "\n[data]\ntrain = [ # '''" + b + "\n\"\\\"" + b + "\", '" + b +
                           "\\',\n\"\"\"\n" + b + "\\\"\"\"\"\"\", '''\n" + b + "''''' ] # \" " + b + "\n";
  EXPECT_EQ(parse_deck(deck, "d.toml", {}).data.train,
            (std::vector<std::string>{"\"" + b, b + "\\", b + "\"\"\"", b + "''"}));
}

TEST(Config, ValuesBesideEachOtherDoNotNest) {
  std::string deck = "[optimizer]\n";
  for (const char* key : {"muon_lr", "adam_beta1", "adam_beta2", "adam_eps", "lr_head", "lr_skip", "lr_scalar"}) {
    deck += fmt::format("{} = 0.5\n", key);
  }
  deck += "[trace]\njson_steps = [" + repeat("1, ", 100) + "]\n" + repeat("[trace.x]\n", 2);
  EXPECT_TRUE(deck_error(deck).starts_with("d.toml:12: syntax error: "));  // the section comes twice
}

TEST(Config, SizeIsBounded) {
  EXPECT_EQ(deck_error(repeat("\n", 1048577)), "d.toml: 1048577 bytes; a deck has at most 1048576");
  EXPECT_NO_THROW(parse_deck(repeat("\n", 1048576), "d.toml", {}));
}

TEST(Config, LongTextIsCutInMessages) {
  const std::string a = repeat("a", 1000000), cut = repeat("a", 57) + "...";
  EXPECT_TRUE(deck_error(a + " = 1").starts_with("d.toml:1: unknown key " + cut + " outside any section; nearest"));
  EXPECT_TRUE(deck_error("[" + a + "]").starts_with("d.toml:1: unknown section [" + cut + "]; nearest"));
  EXPECT_TRUE(deck_error("[run]\n" + a + " = 1").starts_with("d.toml:2: unknown key run." + cut + "; nearest"));
  EXPECT_TRUE(deck_error("[run]\nname = \"" + a + "/\"").starts_with("d.toml:2: run.name: got '" + cut.substr(1)));
  EXPECT_TRUE(deck_error("x = " + repeat("1", 1000000)).starts_with("d.toml:1: syntax error: "));
  for (const std::string& text : {"train.steps=" + a, a + "=1", a + "." + a + "=1", "train." + a + "=1"}) {
    EXPECT_LT(override_error(text).size(), 400u);
  }
}

TEST(Config, OverrideErrorsNameTheOverride) {
  EXPECT_EQ(override_error("train.step=3"),
            "override train.step=3: unknown key train.step; nearest known key: train.steps");
  EXPECT_EQ(override_error("modle.widht=3"),
            "override modle.widht=3: unknown key modle.widht; nearest known key: model.width");
  EXPECT_EQ(override_error("train.steps=many"),
            "override train.steps=many: train.steps: got 'many', allowed: 32-bit integer, from 1 to 10000000");
  EXPECT_EQ(override_error("run.outputs=42"),
            "override run.outputs=42: run.outputs: got 42, allowed: string, not empty, without control or invisible "
            "characters, not beginning with ~ or $; in a shell: 'run.outputs=\"42\"'");
  EXPECT_TRUE(override_error("run.name=2026-11-21").ends_with("; in a shell: 'run.name=\"2026-11-21\"'"));
  EXPECT_TRUE(override_error("run.name=0x10").ends_with("; in a shell: 'run.name=\"0x10\"'"));
  EXPECT_TRUE(override_error("data.train=[1, 2]").ends_with("beginning with ~ or $"));
  EXPECT_TRUE(deck_error("[run]\nname = 42\n").ends_with("; put the string in quotes: name = \"...\""));
  EXPECT_EQ(override_error("train.steps=0"),
            "override train.steps=0: train.steps: got 0, allowed: 32-bit integer, from 1 to 10000000");
  for (const char* text : {"train.steps", "steps=3", "=", "name=a.b"}) {
    EXPECT_EQ(
        override_error(text),
        fmt::format("override {}: an override has the form section.key=value; a value with spaces needs quotes", text));
  }
  EXPECT_EQ(override_error("train.steps="),
            "override train.steps=: train.steps: got nothing, allowed: 32-bit integer, from 1 to 10000000");
  EXPECT_EQ(override_error("train.step="),
            "override train.step=: unknown key train.step; nearest known key: train.steps");
  for (const char* text : {"train.steps=3 4", "window.kind=\"open"}) {
    EXPECT_EQ(override_error(text),
              fmt::format("override {}: the value is neither a TOML value nor a bare word", text));
  }
  EXPECT_EQ(override_error("train.steps=3\nx=1"),
            "override train.steps=3\\nx=1: the value is neither a TOML value nor a bare word");
}

TEST(Config, PathsAreNotForShellsToExpand) {
  const std::string allowed = "without control or invisible characters, not beginning with ~ or $";
  for (const char* key : {"run.outputs", "stop.file", "checkpoint.restart", "data.train", "data.validation"}) {
    for (const char* value : {"~/x", "~", "~user/x", "$HOME/x", "${HOME}/x"}) {
      const std::string error = override_error(fmt::format("{}=\"{}\"", key, value));
      EXPECT_NE(error.find(fmt::format("{}: got '{}', allowed: ", key, value)), std::string::npos) << error;
      EXPECT_NE(error.find(allowed), std::string::npos) << error;
      EXPECT_TRUE(
          error.ends_with("; nothing has expanded it: write the full path, or in a shell $HOME or another "
                          "variable outside single quotes"))
          << error;
    }
    for (const auto& [value, code] : {std::pair("a\\tb", "0009"),
                                      {"\\n", "000A"},
                                      {"a\\u0000", "0000"},
                                      {"\\u001b[2J", "001B"},
                                      {"\\u007f", "007F"},
                                      {"a\\u009b", "009B"},
                                      {"ä\u200bb", "200B"},
                                      {"a\u202eb", "202E"},
                                      {"\u2066", "2066"}}) {
      const std::string error = override_error(fmt::format("{}=\"{}\"", key, value));
      EXPECT_TRUE(error.ends_with(fmt::format("{}; it contains U+{}, a control or invisible character", allowed, code)))
          << error;
      EXPECT_NE(error.find(fmt::format(": {}: got ", key)), std::string::npos) << error;
      EXPECT_EQ(hidden_character(error), std::nullopt) << error;
    }
    EXPECT_NO_THROW(parse_deck("", "d.toml", {fmt::format("{}=\"./~/$x/ä b\"", key)}));
  }
  EXPECT_NE(deck_error("[data]\ntrain = [\"a.h5\", \"b\\nc\"]\n").find(allowed), std::string::npos);
  EXPECT_NE(deck_error("[data]\ntrain = [\"b.h5\", \"~/a.h5\"]\n").find("; nothing has expanded it"),
            std::string::npos);
  EXPECT_EQ(parse_deck("", "d.toml", {"stop.file=\"\""}).stop.file, "");
}

TEST(Config, NamesOfRunsHaveNoHiddenCharacters) {
  for (const char* name : {"a\\tb", "a\\n", "\\u001b", "a\\u0000b", "\\u007f", "\\u0085", "a\u202eb", "\ufeff"}) {
    const std::string error = override_error(fmt::format("run.name=\"{}\"", name));
    EXPECT_NE(error.find("run.name: got "), std::string::npos) << error;
    EXPECT_NE(error.find("without '/', control or invisible characters"), std::string::npos) << error;
    EXPECT_NE(error.find("; it contains U+"), std::string::npos) << error;
    EXPECT_EQ(hidden_character(error), std::nullopt) << error;
  }
  EXPECT_TRUE(override_error("run.name=a\u202eb").ends_with("; it contains U+202E, a control or invisible character"));
  EXPECT_EQ(parse_deck("", "d.toml", {"run.name=\"größe 2\""}).run.name, "größe 2");
}

TEST(Config, RefusedOverridesShowTheQuotesOfAShell) {
  const auto ends = [](const std::string& text, const std::string& quoted) {
    EXPECT_EQ(
        override_error(text),
        fmt::format("override {}: the value is neither a TOML value nor a bare word; in a shell: {}", text, quoted));
  };
  ends("data.train=[a.h5]", "'data.train=[\"a.h5\"]'");
  ends("data.train=[a.h5, b c.h5]", "'data.train=[\"a.h5\", \"b c.h5\"]'");
  ends("data.train=a.h5,b.h5", "'data.train=[\"a.h5\", \"b.h5\"]'");
  ends("data.train=[\"a b.h5\", c,d.h5, '{e,f}.h5',{g,h}.h5]",
       "'data.train=[\"a b.h5\", \"c\", \"d.h5\", \"{e,f}.h5\", \"{g,h}.h5\"]'");
  ends("data.train=[ab].h5", "'data.train=[\"[ab].h5\"]'");
  ends("data.train='a,b.h5", "'data.train=[\"a,b.h5\"]'");
  ends("trace.json_steps=3,5", "'trace.json_steps=[3, 5]'");
  ends("run.name=two words", "'run.name=\"two words\"'");
  ends("run.name=\"open", "'run.name=\"open\"'");
  ends("run.name=it's", "'run.name=\"it'\\''s\"'");
  ends("run.name=a\"b\\c", "'run.name=\"a\\\"b\\\\c\"'");
  ends("run.name= two  words ", "'run.name=\"two  words\"'");
  ends("run.name=[x]", "'run.name=\"[x]\"'");
  EXPECT_EQ(override_error("run.name=o\xff"),
            "override run.name=o\xff: the value of run.name is not UTF-8, as all values must be: rename the file or "
            "directory, or make a link to it with a name in UTF-8");
  const std::string neither = "the value is neither a TOML value nor a bare word";
  EXPECT_EQ(override_error("window.kind=a b"), "override window.kind=a b: " + neither);
  // What the shell has cut, or is too long to be shown, cannot be written for the user.
  const std::string hint = "; put the override in single quotes, and the strings of its value in double quotes";
  EXPECT_EQ(override_error("data.train=[a.h5,"), "override data.train=[a.h5,: " + neither + hint);
  EXPECT_TRUE(override_error("run.name=" + repeat("a ", 100)).ends_with(neither + hint));
  // Nor would quotes help where the string itself is refused.
  EXPECT_EQ(override_error("run.name=a/b c"), "override run.name=a/b c: " + neither);
  EXPECT_TRUE(override_error("data.train=[~/a.h5, b c]").find(neither + "; nothing has expanded it") !=
              std::string::npos);
}

TEST(Config, EmptyOverridesShowWhatIsEmpty) {
  EXPECT_TRUE(override_error("stop.file=").ends_with("; in a shell: 'stop.file=\"\"'"));
  EXPECT_TRUE(override_error("trace.json_steps=").ends_with("each >= 0; in a shell: 'trace.json_steps=[]'"));
  EXPECT_TRUE(override_error("run.name=").starts_with("override run.name=: run.name: got nothing, allowed: string, "));
  EXPECT_TRUE(override_error("run.name=").ends_with("not '.' or '..'"));
  EXPECT_TRUE(override_error("data.train=").ends_with("not beginning with ~ or $"));
}

TEST(Config, TextInMessagesIsPrintable) {
  EXPECT_TRUE(deck_error("\"a\\u001b\u202e\" = 1").starts_with("d.toml:1: unknown key a\\u001B\\u202E outside any"));
  EXPECT_TRUE(override_error("run.x\u200b=1").starts_with("override run.x\\u200B=1: unknown key run.x\\u200B; "));
}

TEST(Config, AnotherSpellingOfAWordIsNoFileToRestartFrom) {
  for (const char* word : {"AUTO", "Auto", "NONE", "nonE"}) {
    EXPECT_TRUE(override_error(fmt::format("checkpoint.restart={}", word))
                    .starts_with(fmt::format("override checkpoint.restart={0}: checkpoint.restart: got '{0}', allowed: "
                                             "string, \"auto\", \"none\" or a file",
                                             word)));
  }
  for (const char* value : {"auto", "none", "Automatic", "./AUTO"}) {
    EXPECT_EQ(parse_deck("", "d.toml", {fmt::format("checkpoint.restart={}", value)}).checkpoint.restart, value);
  }
}

TEST(Config, AllErrorsAreReportedInTheOrderOfTheFile) {
  const std::string deck =
      "[train]\nsteps = 0\nlenght = 3\n[run]\nname = \"\"\nseed = 4\n[modle]\nx = 1\n[comm]\nx = 1\n";
  const auto message = [&](const std::vector<std::string>& overrides) {
    try {
      parse_deck(deck, "d.toml", overrides);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_EQ(error.scope(), Scope::all_ranks);
      return lines_of(error.what());
    }
    return Strings{};
  };
  const Strings lines = message({"train.step=3", "run.name=x", "b.h5]"});
  const Strings starts = {"d.toml:2: train.steps: got 0, allowed: ",
                          "d.toml:3: unknown key train.lenght; nearest known key: train.length",
                          "d.toml:5: run.name: got '', allowed: ",
                          "d.toml:7: unknown section [modle]; nearest known section: [model]",
                          "d.toml:10: unknown key comm.x; ",
                          "override train.step=3: unknown key train.step; ",
                          "override b.h5]: an override has the form section.key=value"};
  ASSERT_EQ(lines.size(), starts.size());
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_TRUE(lines[i].starts_with(starts[i])) << lines[i];

  const Strings many = message(Strings(100000, "train.step=3"));
  ASSERT_EQ(many.size(), ErrorList::max_shown + 1);
  EXPECT_EQ(many.back(), "further errors, if any, are not shown");
}

TEST(Config, AbsurdValuesAreRefused) {
  for (const char* text : {"run.log_every=2147483647",
                           "model.vocabulary=65537",
                           "model.width=16388",
                           "model.heads=1025",
                           "model.head_dim=4100",
                           "model.layers=1025",
                           "model.value_embeddings=513",
                           "model.layers_without_attention=[1024]",
                           "window.first=4194305",
                           "window.last=1e300",
                           "window.quantum=4194432",
                           "train.steps=2147483647",
                           "train.sequences=65537",
                           "train.length=4194432",
                           "validation.tokens=9223372036854775807",
                           "validation.length=4194432",
                           "data.prefetch_steps=1025",
                           "optimizer.muon_momentum_steps=2147483647",
                           "checkpoint.keep=2147483647",
                           "trace.flush_every=100001",
                           "stop.walltime_seconds=1e300",
                           "comm.timeout_seconds=1e300",
                           "head.scale_g_length=4194432",
                           "model.softcap=75.001",
                           "model.softcap=0",
                           "model.softcap_width=0",
                           "model.bigram_rows=1",
                           "model.bigram_rows=16777217",
                           "model.bigram_sign_rows=65537",
                           "model.skip_from=-2",
                           "model.coefficient_width=4097",
                           "model.composition_window=4194305",
                           "train.extension_steps=10000001",
                           "train.untie_step=-2",
                           "validation.last_long_window=4194305",
                           "optimizer.adam_period=1025",
                           "optimizer.normuon_beta=1"}) {
    EXPECT_NE(override_error(text).find(", allowed: "), std::string::npos) << text;
  }
  EXPECT_EQ(parse_deck("", "d.toml", {"model.softcap=75", "train.length=4194304"}).model.softcap, 75.0);
}
