#include "src/base/text.hpp"

#include <gtest/gtest.h>

using namespace nanorun;

TEST(HiddenCharacter, IsAControlOrInvisibleOne) {
  for (const char* good : {"", "größe 2", "\u00a0", "\u200a\u2010\u2027\u202f\u2065\u206a", "\ufefe", "名前", "😀"}) {
    EXPECT_EQ(hidden_character(good), std::nullopt) << good;
  }
  EXPECT_EQ(hidden_character("a\nb\x7f"), U'\n');
  EXPECT_EQ(hidden_character("a\x7f"), U'\x7f');
  EXPECT_EQ(hidden_character(std::string(1, '\0')), U'\0');
  EXPECT_EQ(hidden_character("\xc2\x80"), char32_t{0x80});
  EXPECT_EQ(hidden_character("\xc2\x9f"), char32_t{0x9f});
  for (const auto& [text, code] : {std::pair("ä\u200b", U'\u200b'),
                                   {"\u200f", U'\u200f'},
                                   {"\u2028", U'\u2028'},
                                   {"\u202a", U'\u202a'},
                                   {"\u202e", U'\u202e'},
                                   {"\u2066", U'\u2066'},
                                   {"\u2069", U'\u2069'},
                                   {"x\ufeff", U'\ufeff'}}) {
    EXPECT_EQ(hidden_character(text), code);
  }
}

TEST(HiddenCharacter, BytesThatAreNotUtf8AreNone) {
  for (const char* text : {"\x80",
                           "gr\xf6\xdf"
                           "e",
                           "\xc2", "\xe2\x80",
                           "\xe2\x80"
                           "a",
                           "\xff\xfe", "\xc0\x80"}) {
    EXPECT_EQ(hidden_character(text), std::nullopt);
    EXPECT_EQ(printable(text), text);
  }
  EXPECT_EQ(hidden_character("\xe2\x80\x1b"), U'\x1b');
}

TEST(NameFault, NamesTheCharacterOrTheShell) {
  EXPECT_EQ(name_fault(""), "");
  EXPECT_EQ(name_fault("./~/$x/größe 2"), "");
  EXPECT_EQ(name_fault("a\u202e5h."), "it contains U+202E, a control or invisible character");
  EXPECT_EQ(name_fault("~\x1b"), "it contains U+001B, a control or invisible character");
  for (const char* text : {"~", "~/x", "$HOME/x"}) EXPECT_TRUE(name_fault(text).starts_with("nothing has expanded it"));
}

TEST(Printable, EscapesWhatIsHidden) {
  EXPECT_EQ(printable("a\tb\n\x7f\x1b[0m\r"), "a\\tb\\n\\u007F\\u001B[0m\\u000D");
  EXPECT_EQ(printable("a\u202e\ufeffäß"), "a\\u202E\\uFEFFäß");
}

TEST(Excerpt, IsOneLineOfWholeCharacters) {
  EXPECT_EQ(excerpt("a\tb\n\x1b[0m"), "a\\tb\\n\\u001B[0m");
  EXPECT_EQ(excerpt("größe", 7), "größe");
  EXPECT_EQ(excerpt("größer", 6), "gr...");
  EXPECT_EQ(excerpt(std::string(10, '\0'), 20), "\\u0000\\u0000...");
  EXPECT_EQ(excerpt(std::string(3, '\0'), 18), "\\u0000\\u0000\\u0000");
}

TEST(MessageLine, KeepsBothEndsOfALongLine) {
  const std::string path(100000, 'a');
  const std::string line = message_line("nanorun: ä" + path + "ä: no such file");
  EXPECT_LT(line.size(), 1000u);
  EXPECT_TRUE(line.starts_with("nanorun: äaaa")) << line;
  EXPECT_TRUE(line.ends_with("aaaä: no such file")) << line;
  EXPECT_NE(line.find("aaa [...] aaa"), std::string::npos) << line;
  EXPECT_EQ(message_line(path.substr(0, 1000)), path.substr(0, 1000));
  EXPECT_EQ(message_line("a\x1b"
                         "b"),
            "a\\u001Bb");
  // Characters of two bytes are not cut.
  for (const char* first : {"", "a"}) {
    std::string text = first;
    for (int i = 0; i < 1000; ++i) text += "ä";
    text += "\n";
    EXPECT_EQ(message_line(text).find("\xa4\xa4"), std::string::npos);
    EXPECT_NE(message_line(text).find("ä [...] ä"), std::string::npos);
  }
}

TEST(InUnits, TakesTheLargestThatFits) {
  EXPECT_EQ(in_units(0, "B"), "0 B");
  EXPECT_EQ(in_units(1234567, ""), "1.235 M");
  EXPECT_EQ(in_units(1023, "B", 1024), "1023 B");
  EXPECT_EQ(in_units(1536, "B", 1024), "1.5 KiB");
  EXPECT_EQ(in_units(1e21, "FLOP"), "1000 EFLOP");
}
