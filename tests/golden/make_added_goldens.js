// Writes tokenizer/added.json: the ids that Hugging Face's tokenizers library gives texts by tokenizer/merges.txt and
// tokens that are added to it. Needs the npm package @anush008/tokenizers; written with version 0.6.0:
//   npm install @anush008/tokenizers && NODE_PATH=node_modules node make_added_goldens.js
const fs = require("fs");
const os = require("os");
const path = require("path");
const {Tokenizer} = require("@anush008/tokenizers");

const folder = path.join(__dirname, "tokenizer");

/// GPT-2's alphabet, in the order of the ids of single bytes.
function alphabet() {
  const bytes = [...Array(256).keys()];
  const printable = bytes.filter((b) => (b >= 33 && b <= 126) || (b >= 161 && b !== 173));
  const others = bytes.filter((b) => !printable.includes(b));
  return [...printable, ...others.map((_, i) => 256 + i)].map((code) => String.fromCodePoint(code));
}

const merges = fs.readFileSync(path.join(folder, "merges.txt"), "utf8").split("\n")
  .filter((line) => line && !line.startsWith("#version"));
const vocab = {};
for (const token of [...alphabet(), ...merges.map((line) => line.replace(" ", "")), "<|endoftext|>"])
  vocab[token] = Object.keys(vocab).length;

function added(id, content, special, normalized) {
  return {id, content, single_word: false, lstrip: false, rstrip: false, normalized, special};
}
const tokens = [added(vocab["<|endoftext|>"], "<|endoftext|>", true, false)];
for (const [content, special, normalized] of [
  ["<|pad|>", true, false], ["<|pad|><|mask|>", true, false], ["zq", false, false], ["yzq", false, true],
  ["zqcd", false, true], ["qcd", false, true], ["   ", false, true], ["  ", false, true], ["\t\t", false, true],
  ["\n\n", false, true], [" <s>", true, false], ["\u4e2d", false, true], ["\u3000", false, true]]) {
  if (content in vocab) throw new Error(`${content} is in the vocabulary`);
  tokens.push(added(Object.keys(vocab).length + tokens.length - 1, content, special, normalized));
}

const texts = [
  "<|pad|>text<|pad|><|mask|> <|mask|>", "yzqcd zqcd qcdzq yzq", "qcd yzqc zqqcd",
  "def f(x):\n    if x:\n\n        return\t\tx  \n\t\t\treturn   1\n", "a  b   c    d     e      f",
  "\u4e2d\u6587 \u4e2d\u3000\u3000\u6587\u3000 x", "one <s>two <s> <s>  <s>", "\n\n\n\n \n\n  \t\t\t\t \t\t", "  ",
  "the <|pad|  > zq <|pad|><|pad|><|mask|>", "<|pad|>", "no token here, only words and\u00e9more", ""];

const recipe = {
  version: "1.0", truncation: null, padding: null, added_tokens: tokens, normalizer: null,
  pre_tokenizer: {type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true},
  post_processor: null,
  decoder: {type: "ByteLevel", add_prefix_space: true, trim_offsets: true, use_regex: true},
  model: {type: "BPE", dropout: null, unk_token: null, continuing_subword_prefix: "", end_of_word_suffix: "",
    fuse_unk: false, byte_fallback: false, vocab, merges},
};

async function main() {
  const file = path.join(fs.mkdtempSync(path.join(os.tmpdir(), "goldens-")), "tokenizer.json");
  fs.writeFileSync(file, JSON.stringify(recipe));
  const tokenizer = Tokenizer.fromFile(file);
  const cases = [];
  for (const text of texts) {
    const encoded = await tokenizer.encode(text, null, {addSpecialTokens: false});
    cases.push({text, ids: Array.from(encoded.getIds())});
  }
  const list = (values) => `[\n${values.map((value) => " " + JSON.stringify(value)).join(",\n")}\n]`;
  fs.writeFileSync(path.join(folder, "added.json"), `{"added_tokens": ${list(tokens)},\n"cases": ${list(cases)}}\n`);
}

main();
