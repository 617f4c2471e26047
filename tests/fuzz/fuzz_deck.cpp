// The deck parser: TOML text, and after zero bytes overrides.

#include <vector>

#include "src/config/config.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace nanorun;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> parts(1);
  for (const char c : input) {
    if (c == '\0') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  const std::vector<std::string> overrides(parts.begin() + 1, parts.end());
  std::string resolved;
  const auto parse = [&] {
    const Config config = parse_deck(parts[0], "deck.toml", overrides);
    resolved = to_toml(config);
    check_config(config, 2);
  };
  fuzz::accepts(parse);
  if (resolved.empty()) return 0;
  std::string again;
  fuzz::accepts([&] { again = to_toml(parse_deck(resolved, "resolved.toml", {})); });
  fuzz::require(again == resolved, "the resolved deck does not parse back to itself");
  return 0;
}
