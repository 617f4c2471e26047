#pragma once
// Values of keys: how they are read from TOML, written as text, and named in messages.

#include <string>

#include "src/config/config_keys.hpp"
#include "src/config/config_toml.hpp"

namespace nanorun {

/// The value of a member in TOML.
std::string value_text(const Field& field);

/// The type of a key and what its check allows, in words.
std::string allowed(const Key& key);

/// Sets the member. False where the node does not hold a value of its type that passes the check.
bool read_value(const Field& field, const Check& check, const toml::node& node);

/// A hint that ends the message about a refused value: begins with "; ", or is empty where the message suffices.
/// `path`: the key as overrides spell it; `given`: the value as the override has it, null for a value in a file.
std::string advice(const Key& key, const std::string& path, const toml::node& node, const std::string* given);

/// A hint, like advice(), on how a shell must quote an override whose strings have lost their quotes.
std::string with_quotes(const Key& key, const std::string& path, const std::string& value);

}  // namespace nanorun
