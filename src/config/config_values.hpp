#pragma once
// Values of keys: their types in words, their text, and their reading from TOML.

#include <string>

#include "src/config/config_keys.hpp"
#include "src/config/config_toml.hpp"

namespace nanorun {

/// The value in TOML.
std::string value_text(const Field& field);

/// Type and check of a key in words.
std::string allowed(const Key& key);

/// Sets the member. False where the node does not hold a value of its type that passes the check.
bool read_value(const Field& field, const Check& check, const toml::node& node);

/// What follows a refused value in the message, where that is not plain: begins with "; ", or is empty. `path`: the key
/// as overrides spell it; `given`: an override's value as it was written.
std::string advice(const Key& key, const std::string& path, const toml::node& node, const std::string* given);

/// What to write in a shell instead of an override whose strings lack quotes; likewise.
std::string with_quotes(const Key& key, const std::string& path, const std::string& value);

}  // namespace nanorun
