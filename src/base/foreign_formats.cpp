#include "src/base/foreign_formats.hpp"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>

namespace nanorun {

namespace {

using namespace std::string_view_literals;

struct Format {
  std::string_view magic;
  const char* message;
  std::size_t at = 0;    ///< byte at which the magic stands
  bool is_word = false;  ///< a text may begin with the magic
};

constexpr const char* compressed_archive = "an archive: unpack it first";
constexpr const char* utf16 = "text in UTF-16: convert it to UTF-8 first, as with iconv -f UTF-16 -t UTF-8";
constexpr const char* utf32 = "text in UTF-32: convert it to UTF-8 first, as with iconv -f UTF-32 -t UTF-8";
constexpr const char* weights = "weights of a model, no text and no tokens";

constexpr const char* netcdf = "NetCDF, an array of numbers, no text";

constexpr Format formats[] = {
    {"\x1f\x8b"sv, "compressed by gzip: decompress it first, as with gunzip"},
    {"\x28\xb5\x2f\xfd"sv, "compressed by zstd: decompress it first, as with unzstd"},
    {"\xfd"
     "7zXZ\0"sv,
     "compressed by xz: decompress it first, as with unxz"},
    {"\x04\x22\x4d\x18"sv, "compressed by lz4: decompress it first, as with unlz4"},
    {"\x89LZO\0\r\n\x1a\n"sv, "compressed by lzop: decompress it first, as with lzop -d"},
    {"\xff\x06\0\0sNaPpY"sv, "compressed by snappy: decompress it first"},
    {"BZh9\x17\x72\x45\x38\x50\x90"sv, "compressed by bzip2, and empty"},
    {"CDF\1"sv, netcdf},
    {"CDF\2"sv, netcdf},
    {"CDF\5"sv, netcdf},
    {"\x1f\x9d"sv, "compressed by compress: decompress it first, as with uncompress"},
    {"PK\3\4"sv, "a zip archive: unpack it first, as with unzip"},
    {"PK\5\6"sv, "an empty zip archive"},
    {"7z\xbc\xaf\x27\x1c"sv, compressed_archive},
    {"Rar!\x1a\7"sv, compressed_archive},
    {.magic = "ustar"sv, .message = "a tar archive: unpack it first, as with tar -xf", .at = 257, .is_word = true},
    {.magic = "PAR1"sv,
     .message = "Parquet, a table of columns: write its texts as JSONL first, as with pandas",
     .is_word = true},
    {.magic = "ARROW1"sv,
     .message = "Arrow, a table of columns: write its texts as JSONL first, as with pandas",
     .is_word = true},
    {.magic = "ORC"sv, .message = "ORC, a table of columns: write its texts as JSONL first", .is_word = true},
    {"Obj\1"sv, "Avro: write its texts as JSONL first"},
    {"\x89HDF\r\n\x1a\n"sv, "an HDF5 file: a token shard needs no conversion, a deck names it as it is"},
    {"SQLite format 3\0"sv, "an SQLite database: write its texts as JSONL first"},
    {"%PDF-"sv, "PDF: take its text out first, as with pdftotext"},
    {"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"sv, "a document of Microsoft Office: save it as text in UTF-8 first"},
    {"{\\rtf"sv, "RTF: save it as text in UTF-8 first"},
    {"\x89PNG\r\n\x1a\n"sv, "a PNG image, no text"},
    {"\xff\xd8\xff"sv, "a JPEG image, no text"},
    {.magic = "GIF87a"sv, .message = "a GIF image, no text", .is_word = true},
    {.magic = "GIF89a"sv, .message = "a GIF image, no text", .is_word = true},
    {.magic = "RIFF"sv, .message = "sound, video or an image, no text", .is_word = true},
    {.magic = "OggS"sv, .message = "sound or video, no text", .is_word = true},
    {.magic = "ftyp"sv, .message = "video, no text", .at = 4, .is_word = true},
    {"\x7f"
     "ELF"sv,
     "a program, no text"},
    {"\x93NUMPY"sv, "an array of NumPy: of tokens make a .bin file with its header, see docs/file_formats.md"},
    {.magic = "GGUF"sv, .message = weights, .is_word = true},
    {"MMIDIDX\0\0"sv, "an index of Megatron's tokens, which nanorun does not read"},
    {"version https://git-lfs.github.com/spec/"sv, "a pointer of Git LFS in place of the file: run git lfs pull"},
    {"/annex/objects/"sv, "a pointer of git-annex in place of the file: run git annex get"},
    {"\xff\xfe\0\0"sv, utf32},
    {"\0\0\xfe\xff"sv, utf32},
    {"\xff\xfe"sv, utf16},
    {"\xfe\xff"sv, utf16},
};

/// Files of llm.c begin with one of these numbers.
struct Number {
  std::uint32_t magic;
  const char* message;
};
constexpr Number numbers[] = {
    {20240520, "a .bin file of tokens: nanorun shard takes it without --text and --tokenizer"},
    {20240801, "llm.c's tokens of Llama 3, of 32 bits: more than the 65536 ids that nanorun's tokens of 16 bits have"},
    {20240522, "llm.c's questions of HellaSwag, for nanorun eval --hellaswag"},
    {20240326, weights},
    {20240328, "llm.c's tokenizer: name vocab.bpe, a tokenizer.json or a file of ranks"},
};

bool is_bzip2(std::string_view head) {
  return head.starts_with("BZh") && head.size() >= 10 && head.substr(4, 6) == "\x31\x41\x59\x26\x53\x59"sv;
}

/// A Python pickle of protocol 2 to 5, which ends in a dot; older PyTorch's checkpoints are some.
bool is_pickle(std::string_view head) { return head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5; }

/// The bytes of the header, a number of 64 bits, and then its JSON.
bool is_safetensors(std::string_view head) {
  return head.size() > 9 && head[8] == '{' && head[9] == '"' && head.substr(5, 3) == "\0\0\0"sv;
}

/// A frame that readers of zstd and lz4 pass over, before those with data.
bool is_skippable_frame(std::string_view head) {
  return head.size() >= 8 && (head[0] & '\xf0') == '\x50' && head.substr(1, 3) == "\x2a\x4d\x18"sv;
}

/// Recognises LZMA, xz's older format: its usual properties, the dictionary's size, and no size of the data.
bool is_lzma(std::string_view head) {
  return head.size() >= 13 && head.starts_with("\x5d\0\0"sv) &&
         head.substr(5, 8) == "\xff\xff\xff\xff\xff\xff\xff\xff"sv;
}

/// Most text in UTF-16 has in every other byte a zero or one other constant, which tells the script and is no character
/// of a text, as in Cyrillic or Arabic.
bool is_unmarked_utf16(std::string_view head) {
  constexpr int scripts = 32;
  if (head.size() < 16) return false;
  std::size_t counts[2][scripts] = {};
  for (std::size_t i = 0; i < head.size(); ++i) {
    const auto byte = static_cast<unsigned char>(head[i]);
    if (byte < scripts) ++counts[i % 2][byte];
  }
  const std::size_t half = head.size() / 2;
  for (const int high : {0, 1}) {
    const std::size_t zeros = counts[high][0];
    std::size_t script = 0;
    for (int code = 1; code < scripts; ++code) {
      if (zeros > 0 || code < '\a' || code > '\r') script = std::max(script, counts[high][code]);
    }
    if ((zeros + script) * 10 >= half * 9 && counts[1 - high][0] * 10 <= half) return true;
  }
  return false;
}

}  // namespace

std::string known_format(std::string_view head) {
  for (const Format& format : formats) {
    if (head.size() < format.at || !head.substr(format.at).starts_with(format.magic)) continue;
    if (!format.is_word || head.find('\0') != head.npos) return format.message;
  }
  if (head.size() >= sizeof(std::uint32_t)) {
    std::uint32_t magic;
    std::memcpy(&magic, head.data(), sizeof(magic));
    for (const Number& number : numbers) {
      if (magic == number.magic) return number.message;
    }
  }
  if (is_bzip2(head)) return "compressed by bzip2: decompress it first, as with bunzip2";
  if (is_skippable_frame(head)) return "compressed by zstd or lz4: decompress it first, as with unzstd or unlz4";
  if (is_lzma(head)) return "compressed by lzma: decompress it first, as with unlzma";
  if (is_pickle(head)) return "a pickle of Python, as PyTorch writes: no text and no tokens";
  if (is_safetensors(head)) return weights;
  if (is_unmarked_utf16(head)) return utf16;
  return "";
}

std::string html_page(std::string_view head) {
  std::string begin(head.substr(0, 256));
  begin.erase(0, begin.find_first_not_of(" \t\r\n"));
  std::ranges::transform(begin, begin.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (!begin.starts_with("<!doctype html") && !begin.starts_with("<html")) return "";
  return "an HTML page, as servers send it in place of a file that they do not give out: fetch it again";
}

}  // namespace nanorun
