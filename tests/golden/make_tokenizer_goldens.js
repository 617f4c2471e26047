#!/usr/bin/env node
// Makes the files in tokenizer/ from its corpus.txt: merges.txt, a small table learned from that, and cases.json, texts
// (base64, since some are no UTF-8) with the ids that tiktoken gives them. Needs the npm package tiktoken; written with
// version 1.0.22:
//   npm install tiktoken && NODE_PATH=node_modules node make_tokenizer_goldens.js
'use strict';
const fs = require('fs');
const path = require('path');
const { Tiktoken } = require('tiktoken');

const folder = path.join(__dirname, 'tokenizer');
const pattern = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const mergeCount = 500;

/// GPT-2's alphabet: a printable character for each byte.
const printable = (b) => (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
const order = [...Array(256).keys()].filter(printable).concat([...Array(256).keys()].filter((b) => !printable(b)));
const letters = new Map(order.map((b, i) => [b, String.fromCodePoint(printable(b) ? b : 256 + i - 188)]));
const bytesOf = new Map([...letters].map(([b, c]) => [c, b]));

function learn(text) {
  const words = new Map();
  for (const [piece] of text.matchAll(new RegExp(pattern, 'gu'))) {
    const spelled = [...Buffer.from(piece)].map((b) => letters.get(b)).join('\0');
    words.set(spelled, (words.get(spelled) || 0) + 1);
  }
  let split = [...words].map(([word, count]) => [word.split('\0'), count]);
  const merges = [], tokens = new Set(letters.values());
  while (merges.length < mergeCount) {
    const counts = new Map();
    for (const [word, count] of split) {
      for (let i = 0; i + 1 < word.length; ++i) {
        const pair = word[i] + ' ' + word[i + 1];
        if (!tokens.has(word[i] + word[i + 1])) counts.set(pair, (counts.get(pair) || 0) + count);
      }
    }
    const [best] = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))[0];
    const [left, right] = best.split(' ');
    merges.push(best);
    tokens.add(left + right);
    for (const entry of split) {
      const word = [];
      for (let i = 0; i < entry[0].length; ++i) {
        const joins = entry[0][i] === left && entry[0][i + 1] === right;
        word.push(joins ? left + right : entry[0][i]);
        i += joins ? 1 : 0;
      }
      entry[0] = word;
    }
  }
  return merges;
}

/// The table as tiktoken reads it.
function ranksOf(merges) {
  const tokens = order.map((b) => letters.get(b)).concat(merges.map((merge) => merge.replace(' ', '')));
  const base64 = tokens.map((token) => Buffer.from([...token].map((c) => bytesOf.get(c))).toString('base64'));
  return base64.map((token, rank) => `${token} ${rank}\n`).join('');
}

const corpus = fs.readFileSync(path.join(folder, 'corpus.txt'));
const merges = learn(corpus.toString());
fs.writeFileSync(path.join(folder, 'merges.txt'), '#version: 0.2\n' + merges.map((merge) => merge + '\n').join(''));
const special = '<|endoftext|>';
const base64Ranks = ranksOf(merges).split('\n').filter(Boolean).map((line) => line.split(' ')[0]);
const encoding = new Tiktoken('! 0 ' + base64Ranks.join(' '), { [special]: 256 + merges.length }, pattern);

let seed = 1;
const random = (bound) => (seed = (seed * 48271) % 2147483647) % bound;
const pick = (list) => list[random(list.length)];
const many = (count, make) => Array.from({ length: count }, make);
const blanks = [' ', '  ', '\n', '\t', '\r\n', '\v', '\f', '\u0085', '\u00a0', '\u1680', '\u180e', '\u2003', '\u200b',
  '\u2028', '\u202f', '\u205f', '\u3000', '\u001c', '\ufeff'];
const broken = ['ff', '80', 'c080', 'c3', 'e282', 'e08080', 'eda080', 'f09f98', 'f0808080', 'f4908080', 'f888808080', 'fe',
  'e282e282ac', 'f09f9841', 'c3c3a9'].map((hex) => Buffer.from(hex, 'hex'));
const signs = ["'s", "'re", "'LL", 'a', 'the', ' and', '1', '½', '٣', 'é', '中文', '😀', '\u200d', 'क', '़', special, '_', '!!', '\0', '\x7f'];
const cases = {
  corpus,
  empty: '',
  'end of text is text': `one${special}two ${special} <|endoftext|`,
  'every byte': Buffer.from([...Array(256).keys()]),
  'broken UTF-8': Buffer.concat(broken.flatMap((part) => [part, Buffer.from('a')]).concat(broken)),
  'cut character at the end': Buffer.from('the 😀').subarray(0, 7),
  blanks: many(400, () => pick(blanks)).join(''),
  'blanks between words': many(400, () => pick(blanks) + (random(3) ? '' : pick(signs))).join(''),
  'long run of blanks': ' '.repeat(3000) + 'a' + '\n'.repeat(2000) + ' ' + '\t'.repeat(1000),
  'long word': many(5000, () => pick('etaoinshrdlu')).join(''),
  'long word of one letter': 'e'.repeat(4097),
  mixture: Buffer.concat(many(2000, () => (random(12) ? Buffer.from(pick(random(3) ? signs : blanks)) : pick(broken)))),
};
const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
const goldens = Object.entries(cases).map(([name, text]) => {
  const bytes = Buffer.from(text);
  return { name, bytes: bytes.toString('base64'), ids: [...encoding.encode_ordinary(decoder.decode(bytes))] };
});
const lines = goldens.map((golden) => JSON.stringify(golden));
fs.writeFileSync(path.join(folder, 'cases.json'), `[\n${lines.join(',\n')}\n]\n`);
