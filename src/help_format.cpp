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

constexpr int names_width = 28;  // columns of what stands left of the descriptions, with two spaces before it

/// A name and its description beside it, or below a name that leaves it no room.
std::string row(const std::string& name, const std::string& description) {
  const bool fits = name.size() < names_width;
  return fmt::format("  {:<{}}{}\n", name, names_width,
                     fits ? description : fmt::format("\n{:{}}{}", "", names_width + 2, description));
}

/// "-h, --help" or "--tokens N", and "DECK" of an argument.
std::string name_of(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name(true, false);
  std::string name = option.get_name(false, true);  // "-h,--help"
  if (const std::size_t comma = name.find(','); comma != std::string::npos) name.insert(comma + 1, " ");
  if (option.get_type_size() == 0) return name;
  return fmt::format("{} {}{}", name, value_name(values_of(option).type), option.get_allow_extra_args() ? "..." : "");
}

std::string description_of(const CLI::Option& option) {
  std::string text = option.get_description();
  if (option.get_positional()) return text;
  if (const std::string range = values_of(option).range; !range.empty()) text += "; " + range;
  if (!option.get_default_str().empty()) text += "; by default " + option.get_default_str();
  if (!option.get_needs().empty()) text += "; only with " + either(option.get_needs());
  if (!option.get_excludes().empty()) text += "; not with " + either(option.get_excludes());
  return text;
}

/// "DECK", "FILE..." or "[OVERRIDE...]".
std::string usage_of(const CLI::Option& argument) {
  const bool repeats = argument.get_expected_max() >= CLI::detail::expected_max_vector_size;
  const std::string name = name_of(argument) + (repeats ? "..." : "");
  return argument.get_required() ? name : "[" + name + "]";
}

/// The whole text, since the layout of CLI11's own formatter is another in each of its versions.
class HelpFormat : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode) const override {
    std::string usage, arguments, options, commands;
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_positional()) usage += " " + usage_of(*option);
      (option->get_positional() ? arguments : options) += row(name_of(*option), description_of(*option));
    }
    for (const CLI::App* command : app->get_subcommands({}))
      commands += row(command->get_name(), command->get_description());
    if (!commands.empty()) usage += " COMMAND";
    const auto part = [](const char* title, const std::string& rows) {
      return rows.empty() ? "" : fmt::format("\n{}:\n{}", title, rows);
    };
    return fmt::format("{}\nUsage: {} [OPTIONS]{}\n{}{}{}\n{}\n", app->get_description(), name, usage,
                       part("Arguments", arguments), part("Options", options), part("Subcommands", commands),
                       app->get_footer());
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_format() { return std::make_shared<HelpFormat>(); }

}  // namespace nanorun
