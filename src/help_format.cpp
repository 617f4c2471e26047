#include "src/help_format.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace nanorun {

namespace {

/// The type of an option's values, and what its check says of them.
struct Values {
  std::string type, range;
};

Values values_of(const CLI::Option& option) {
  const std::string text = option.get_type_name();  // "TYPE:CHECK", or one of both
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return {text, ""};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

std::string value_name(const std::string& type) {
  if (type == "INT" || type == "UINT") return "N";
  return type == "FLOAT" ? "X" : type;
}

/// "--a, --b or --c", in the order of the alphabet.
std::string either(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options) names.push_back(option->get_name());
  std::ranges::sort(names);
  std::string text = names.front();
  for (std::size_t i = 1; i < names.size(); ++i) text += (i + 1 < names.size() ? ", " : " or ") + names[i];
  return text;
}

class HelpFormat : public CLI::Formatter {
 public:
  /// CLI11 writes "-h,--help".
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, positional);
    if (const std::size_t comma = name.find(','); comma != std::string::npos) name.insert(comma + 1, " ");
    return name;
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_positional() || option->get_type_size() == 0) return "";
    const bool repeats = option->get_allow_extra_args();
    return fmt::format(" {}{}", value_name(values_of(*option).type), repeats ? "..." : "");
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    if (option->get_positional()) return text;
    if (const std::string range = values_of(*option).range; !range.empty()) text += "; " + range;
    if (!option->get_default_str().empty()) text += "; by default " + option->get_default_str();
    if (!option->get_needs().empty()) text += "; only with " + either(option->get_needs());
    if (!option->get_excludes().empty()) text += "; not with " + either(option->get_excludes());
    return text;
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_format() {
  auto format = std::make_shared<HelpFormat>();
  // CLI11 writes the names of the parts in capitals since 2.5.
  for (const char* arguments : {"Positionals", "POSITIONALS"}) format->label(arguments, "Arguments");
  format->label("SUBCOMMAND", "COMMAND");
  return format;
}

}  // namespace nanorun
