// The tables of Hugging Face's tokenizer.json.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "src/base/error.hpp"
#include "src/base/text.hpp"
#include "src/tokenizer/tokenizer_split.hpp"
#include "src/tokenizer/tokenizer_table.hpp"

namespace nanorun {

namespace {

using Json = nlohmann::json;

constexpr int max_depth = 32;  ///< a tokenizer.json nests less

class Reader {
 public:
  Reader(const std::string& path, std::string_view text) : path_(path), root_(parse(text)) {}

  TokenizerTable read() {
    require_recipe();
    read_added_tokens();
    read_vocabulary();
    find_bytes();
    read_merges();
    table_.from_json = true;
    return std::move(table_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    refuse_table("{}: {}", path_, fmt::format(format, std::forward<Args>(args)...));
  }

  Json parse(std::string_view text) const {
    const auto shallow = [&](int depth, Json::parse_event_t, Json&) {
      if (depth > max_depth) fail("nests deeper than {} levels: not a tokenizer.json", max_depth);
      return true;
    };
    // The parser takes a zero byte for the end of the text.
    if (const std::size_t zero = text.find('\0'); zero != text.npos) fail("not JSON: byte {} is zero", zero);
    try {
      return Json::parse(text, shallow);
    } catch (const Json::exception& error) {
      const std::string what = error.what();
      fail("not JSON: {}", excerpt(what.substr(what.find("] ") == what.npos ? 0 : what.find("] ") + 2)));
    }
  }

  /// A member of an object; null where there is none.
  static const Json& member(const Json& object, const char* key) {
    static const Json null;
    const auto found = object.find(key);
    return found == object.end() ? null : *found;
  }

  /// Throws unless the file says to do what GPT-2 does.
  void require_recipe() const {
    const Json& model = member(root_, "model");
    const Json& type = member(model, "type");
    if ((!type.is_null() && type != "BPE") || !member(model, "vocab").is_object() ||
        !member(model, "merges").is_array()) {
      if (root_.is_object() && root_.size() > 1 && std::ranges::all_of(root_, &Json::is_number))
        fail("tokens and their ids alone, an encoder.json or vocab.json: give the vocab.bpe or merges.txt beside it");
      fail("no model of type BPE with vocab and merges: not a tokenizer.json of a byte-pair encoding");
    }
    const Json& splitter = member(root_, "pre_tokenizer");
    const Json& use_regex = member(splitter, "use_regex");
    if (member(splitter, "type") != "ByteLevel" || member(splitter, "add_prefix_space") != false ||
        (!use_regex.is_null() && use_regex != true)) {
      fail("pre_tokenizer is not GPT-2's: ByteLevel with use_regex and without add_prefix_space");
    }
    require_unset(root_, "normalizer");
    for (const char* key : {"truncation", "padding"}) {
      if (!member(root_, key).is_null())
        fail("{} is set, by which its own library cuts or fills every text: set it to null", key);
    }
    require_no_further_tokens(member(root_, "post_processor"));
    for (const char* key :
         {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"}) {
      require_unset(model, key);
    }
  }

  void require_unset(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    const bool is_unset = value.is_null() || value == "" || value == false || value == 0;
    if (!is_unset) fail("{} is set, which is not done in GPT-2's encoding", key);
  }

  /// Throws where a post-processor puts other tokens around a text than the one that begins documents.
  void require_no_further_tokens(const Json& processor) const {
    const Json& type = member(processor, "type");
    if (processor.is_null() || type == "ByteLevel") return;
    const Json& specials = member(processor, "special_tokens");
    if (type == "Sequence" && member(processor, "processors").is_array()) {
      for (const Json& part : processor["processors"]) require_no_further_tokens(part);
    } else if (type == "TemplateProcessing" && specials.is_object()) {
      for (const auto& [name, token] : specials.items()) {
        if (name != end_of_text_symbol)
          fail("post_processor puts the token \"{}\" around texts: set it to null", excerpt(name));
      }
    } else {
      fail("post_processor is of another type than ByteLevel: {}; set it to null", excerpt(dump(type)));
    }
  }

  /// Gives an id its bytes.
  void place(const Json& id, const std::string& name, const std::string& bytes) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= max_vocabulary)
      fail("token \"{}\" has id {}, not one of 0 to {}", excerpt(name), excerpt(dump(id)), max_vocabulary - 1);
    if (bytes.empty() || bytes.size() > max_token_bytes)
      fail("token \"{}\" has {} bytes, not 1 to {}", excerpt(name), bytes.size(), max_token_bytes);
    const std::size_t index = id.get<std::size_t>();
    if (index >= table_.tokens.size()) table_.tokens.resize(index + 1);
    if (!table_.tokens[index].empty()) fail("tokens \"{}\" and another have id {}", excerpt(name), index);
    table_.tokens[index] = bytes;
  }

  void read_added_tokens() {
    std::set<std::string> contents;
    const Json& tokens = member(root_, "added_tokens");
    for (const Json& token : tokens) {
      if (!member(token, "content").is_string())
        fail("added_tokens has an entry without content: {}", excerpt(dump(token)));
      const std::string content = token["content"];
      if (!contents.insert(content).second) fail("added_tokens has \"{}\" twice", excerpt(content));
      place(member(token, "id"), content, content);
      added_.insert(token["id"].get<Token>());
      if (content == end_of_text_symbol) table_.end_of_text = token["id"].get<Token>();
    }
    if (!contents.contains(end_of_text_symbol)) fail("no {} among the added_tokens", end_of_text_symbol);
    std::uint64_t next = root_["model"]["vocab"].size();
    for (const Json& token : tokens) {
      const std::string content = token["content"];
      const auto id = token["id"].get<Token>();
      next = std::max(require_id_of_library(content, id, next), next);
      if (content != end_of_text_symbol) table_.added.push_back({content, id, is_normalized(token)});
    }
  }

  /// The library takes the id of a token of the vocabulary, and else the one behind all others, whatever the file says.
  /// Returns the id behind the token.
  std::uint64_t require_id_of_library(const std::string& content, Token id, std::uint64_t next) const {
    static const Json none;
    const Json& vocab = member(member(root_, "model"), "vocab");
    const auto found = vocab.find(content);
    const Json& known = found == vocab.end() ? none : *found;
    const bool is_own = found == vocab.end() ? id == next : known == id;
    if (!is_own) {
      fail("added token \"{}\" has id {}, where its own library gives it {}", excerpt(content), id,
           known.is_null() ? std::to_string(next) : excerpt(dump(known)));
    }
    return std::uint64_t{id} + 1;
  }

  /// Whether an added token is sought in normalized text. Throws where it cannot be cut out as the library does.
  bool is_normalized(const Json& token) const {
    const std::string content = token["content"];
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      if (member(token, key) == true)
        fail("added token \"{}\" has {}, which nanorun does not do: set it to false", excerpt(content), key);
    }
    if (last_cut(content) > 0)
      fail("added token \"{}\" has a blank behind a word, which nanorun does not do: remove it", excerpt(content));
    if (content.find(end_of_text_symbol) != content.npos)
      fail("added token \"{}\" contains {}, which is text here: remove it", excerpt(content), end_of_text_symbol);
    const Json& normalized = member(token, "normalized");
    return normalized.is_boolean() ? normalized == true : member(token, "special") != true;
  }

  void read_vocabulary() {
    std::string bytes;
    for (const auto& [name, id] : root_["model"]["vocab"].items()) {
      const bool is_added = id.is_number_unsigned() && id < max_vocabulary && added_.contains(id.get<Token>());
      const bool is_spelled = spelled_bytes(name, bytes);
      if (is_added && table_.tokens[id.get<Token>()] == name) {
        if (is_spelled && bytes == name) ids_.emplace(name, id.get<Token>());  // merges may make it too
        continue;
      }
      if (!is_spelled) fail("token \"{}\" is not in GPT-2's spelling", excerpt(name));
      place(id, name, bytes);
      ids_.emplace(name, id.get<Token>());
    }
    for (std::size_t id = 0; id < table_.tokens.size(); ++id) {
      if (table_.tokens[id].empty()) fail("no token has id {}, though one has {}", id, table_.tokens.size() - 1);
    }
  }

  void find_bytes() {
    std::array<bool, 256> found{};
    std::string bytes;
    for (const auto& [name, id] : ids_) {
      spelled_bytes(name, bytes);
      if (bytes.size() != 1) continue;
      found[static_cast<unsigned char>(bytes[0])] = true;
      table_.bytes[static_cast<unsigned char>(bytes[0])] = id;
    }
    const auto missing = std::ranges::find(found, false) - found.begin();
    if (missing < 256) fail("no token is the byte 0x{:02x} alone", missing);
  }

  /// The two tokens of a merge: "a b" or ["a", "b"].
  std::pair<std::string, std::string> words_of(const Json& merge) const {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
      return {merge[0], merge[1]};
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    const std::size_t space = text.find(' ');
    if (space == text.npos) fail("merges: {} is not two tokens", excerpt(dump(merge)));
    return {text.substr(0, space), text.substr(space + 1)};
  }

  void read_merges() {
    std::set<std::pair<Token, Token>> pairs;
    for (const Json& merge : root_["model"]["merges"]) {
      const auto [left, right] = words_of(merge);
      const auto first = ids_.find(left), second = ids_.find(right), merged = ids_.find(left + right);
      if (first == ids_.end() || second == ids_.end() || merged == ids_.end())
        fail("merges: {}: its tokens, or what it makes, are not in vocab", excerpt(dump(merge)));
      if (!pairs.emplace(first->second, second->second).second) fail("merges: {} is there twice", excerpt(dump(merge)));
      const auto rank = static_cast<std::uint32_t>(table_.merges.size());
      table_.merges.push_back({first->second, second->second, merged->second, rank});
    }
  }

  static std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

  const std::string& path_;
  Json root_;
  TokenizerTable table_;
  std::set<Token> added_;
  TokenIds ids_;
};

}  // namespace

std::string vocab_json(const TokenizerTable& table) {
  std::string text = "{";
  std::set<std::string> spellings;
  for (std::size_t id = 0; id < table.tokens.size(); ++id) {
    const std::string spelling = id == table.end_of_text ? end_of_text_symbol : spelling_of(table.tokens[id]);
    if (!spellings.insert(spelling).second)
      refuse_table("\"{}\" is the spelling of two tokens, which vocab.json cannot tell apart", excerpt(spelling));
    text += fmt::format("{}\n{}: {}", id > 0 ? "," : "", Json(spelling).dump(), id);
  }
  return text + "\n}\n";
}

TokenizerTable parse_tokenizer_json(const std::string& path, std::string_view text) {
  try {
    return Reader(path, text).read();
  } catch (const Json::exception& error) {
    refuse_table("{}: not a tokenizer.json: {}", path, excerpt(error.what()));
  }
}

}  // namespace nanorun
