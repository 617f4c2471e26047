#include "src/tokenizer/tokenizer_split.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <new>

#include "src/base/error.hpp"

namespace nanorun {

namespace {

/// GPT-2's pattern. PCRE2's own \s has U+180E too, which is no White_Space.
std::string pattern() {
  constexpr const char* blanks =
      R"(\t-\r\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  return fmt::format(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^{0}\p{{L}}\p{{N}}]+|[{0}]+(?![^{0}])|[{0}]+)",
                     blanks);
}

[[noreturn]] void fail(const char* what, int code) {
  std::array<PCRE2_UCHAR, 256> reason{};
  pcre2_get_error_message(code, reason.data(), reason.size());
  throw Error(ExitCode::internal,
              fmt::format("the text cannot be {}: PCRE2: {}", what, reinterpret_cast<const char*>(reason.data())));
}

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

unsigned char byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

bool is_ascii_blank(char c) { return (c >= '\t' && c <= '\r') || c == ' '; }

/// Whether a text that is not empty ends in one of the characters of White_Space.
bool ends_in_blank(std::string_view text) {
  if (byte_at(text, text.size() - 1) < 0x80) return is_ascii_blank(text.back());
  if (text.ends_with("\u0085") || text.ends_with("\u00a0")) return true;
  for (const std::string_view blank : {"\u1680", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"}) {
    if (text.ends_with(blank)) return true;
  }
  const std::string_view last = text.substr(text.size() - std::min<std::size_t>(text.size(), 3));
  return last >= "\u2000" && last <= "\u200a" && last.size() == 3;
}

}  // namespace

class Splitter::Impl {
 public:
  Impl() {
    int error = 0;
    PCRE2_SIZE error_offset = 0;
    const std::string text = pattern();
    code_.reset(pcre2_compile(units(text), text.size(), PCRE2_UTF | PCRE2_ANCHORED, &error, &error_offset, nullptr));
    if (!code_) fail("split", error);
    match_.reset(pcre2_match_data_create(1, nullptr));
    if (!match_) throw std::bad_alloc();
    has_jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
  }

  std::size_t first(std::string_view text) {
    const int count = match(text);
    if (count < 0) fail("split", count);
    return pcre2_get_ovector_pointer(match_.get())[1];
  }

 private:
  int match(std::string_view text) {
    constexpr auto unchecked = PCRE2_NO_UTF_CHECK;
    if (has_jit_) return pcre2_jit_match(code_.get(), units(text), text.size(), 0, unchecked, match_.get(), nullptr);
    return pcre2_match(code_.get(), units(text), text.size(), 0, unchecked, match_.get(), nullptr);
  }

  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
  bool has_jit_ = false;
};

Splitter::Splitter() : impl_(std::make_unique<Impl>()) {}
Splitter::~Splitter() = default;
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter& Splitter::operator=(Splitter&&) noexcept = default;

std::size_t Splitter::first(std::string_view text) { return impl_->first(text); }

std::size_t last_cut(std::string_view text) {
  for (std::size_t at = text.size(); at-- > 1;) {
    if (is_ascii_blank(text[at]) && !ends_in_blank(text.substr(0, at))) return at;
  }
  return 0;
}

}  // namespace nanorun
