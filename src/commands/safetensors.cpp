#include "src/commands/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <optional>

#include "src/base/error.hpp"
#include "src/base/files.hpp"
#include "src/base/json_text.hpp"

namespace nanorun {

namespace {

using Json = nlohmann::json;

constexpr std::uint64_t max_header_bytes = std::uint64_t{1} << 22;  ///< thousands of layers
constexpr int max_depth = 4;                                        ///< a header nests less
constexpr std::size_t max_extents = 8;
constexpr std::size_t max_tensors = 10'000;

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ExitCode::data, fmt::format(format, std::forward<Args>(args)...));
}

/// Bytes of a value; nothing for a type that the format does not have.
std::optional<std::uint64_t> size_of(const std::string& type) {
  static const std::map<std::string, std::uint64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  const auto found = sizes.find(type);
  return found == sizes.end() ? std::nullopt : std::optional(found->second);
}

Json parse_header(const std::string& path, const std::string& text) {
  Json header;
  try {
    header = parse_json<Json>(text, max_depth);
  } catch (const std::runtime_error& error) {
    fail("{}: its header {}; no safetensors file", path, error.what());
  }
  if (!header.is_object()) fail("{}: its header is not a JSON object; no safetensors file", path);
  if (header.size() > max_tensors)
    fail("{}: its header names {} tensors, more than the {} that are read", path, header.size(), max_tensors);
  return header;
}

/// A whole number that is not negative.
std::uint64_t number(const std::string& path, const std::string& name, const Json& value) {
  if (!value.is_number_unsigned()) fail("{}: {}: a size that is no whole number", path, excerpt(name));
  return value.get<std::uint64_t>();
}

/// Bytes of the values by type and shape.
std::uint64_t bytes_of(const std::string& path, const SafeTensor& tensor) {
  const std::optional<std::uint64_t> size = size_of(tensor.type);
  if (!size) fail("{}: {}: unknown type {}", path, excerpt(tensor.name), excerpt(tensor.type));
  if (std::ranges::find(tensor.shape, 0u) != tensor.shape.end()) return 0;  // whatever its other extents
  std::uint64_t bytes = *size;
  for (const std::uint64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) fail("{}: {}: impossible shape", path, excerpt(tensor.name));
  }
  return bytes;
}

SafeTensor parse_tensor(const std::string& path, const std::string& name, const Json& entry) {
  const auto member = [&](const char* key, Json::value_t type) -> const Json& {
    const auto found = entry.is_object() ? entry.find(key) : entry.end();
    if (!entry.is_object() || found == entry.end() || found->type() != type)
      fail("{}: {}: its {} is missing or of a wrong type", path, excerpt(name), key);
    return *found;
  };
  SafeTensor tensor{name, member("dtype", Json::value_t::string).get<std::string>(), {}, 0, 0};
  const Json& shape = member("shape", Json::value_t::array);
  if (shape.size() > max_extents) fail("{}: {}: has {} extents", path, excerpt(name), shape.size());
  for (const Json& extent : shape) tensor.shape.push_back(number(path, name, extent));
  const Json& offsets = member("data_offsets", Json::value_t::array);
  if (offsets.size() != 2) fail("{}: {}: its data_offsets are not two", path, excerpt(name));
  tensor.begin = number(path, name, offsets[0]);
  tensor.end = number(path, name, offsets[1]);
  return tensor;
}

}  // namespace

std::string safetensors_header(const std::vector<SafeTensor>& tensors) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  for (const SafeTensor& tensor : tensors) {
    header[tensor.name] = {
        {"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the values
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(text.size() >> 8 * i & 0xff);
  return bytes + text;
}

SafeTensors read_safetensors(const std::string& path) {
  const std::uint64_t size = file_size(path, ExitCode::data);
  const Descriptor descriptor = open_to_read(path, ExitCode::data);
  if (size < 8) fail("{}: has {} bytes; no safetensors file", path, size);
  std::array<std::byte, 8> bytes;
  read_at(descriptor, path, 0, bytes, ExitCode::data);
  std::uint64_t header_size = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) header_size |= std::to_integer<std::uint64_t>(bytes[i]) << 8 * i;
  if (std::memcmp(bytes.data(), "version ", bytes.size()) == 0)
    fail("{}: a pointer of Git LFS, not the file itself: fetch that with git lfs pull", path);
  if (header_size > size - 8) fail("{}: is cut off in its header, or no safetensors file", path);
  if (header_size > max_header_bytes)
    fail("{}: its header has {} bytes, more than the {} that are read", path, header_size, max_header_bytes);
  std::string text(header_size, '\0');
  read_at(descriptor, path, 8, std::as_writable_bytes(std::span(text)), ExitCode::data);

  SafeTensors file{{}, 8 + header_size};
  const Json header = parse_header(path, text);
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") file.tensors.push_back(parse_tensor(path, name, entry));
  }
  std::ranges::sort(file.tensors, {}, [](const SafeTensor& tensor) { return std::pair(tensor.begin, tensor.end); });
  std::uint64_t offset = 0;
  for (const SafeTensor& tensor : file.tensors) {
    const std::uint64_t count = bytes_of(path, tensor);
    if (tensor.begin != offset)
      fail("{}: {}: begins at {}, where the tensor before it ends at {}", path, excerpt(tensor.name), tensor.begin,
           offset);
    if (tensor.end < tensor.begin || tensor.end - tensor.begin != count)
      fail("{}: {}: its place has not the {} bytes of its shape", path, excerpt(tensor.name), count);
    offset = tensor.end;
  }
  if (offset != size - file.values)
    fail("{}: has {} bytes of values where its header says {}", path, size - file.values, offset);
  return file;
}

void read_safetensor(const std::string& path, const SafeTensors& file, const SafeTensor& tensor,
                     std::span<float> values) {
  if (tensor.type != "F32" && tensor.type != "BF16")
    fail("{}: {}: has the type {}; F32 and BF16 are read", path, excerpt(tensor.name), excerpt(tensor.type));
  if (tensor.end - tensor.begin != values.size() * *size_of(tensor.type))
    fail("{}: {}: has not the {} values that the model needs", path, excerpt(tensor.name), values.size());
  static_assert(std::endian::native == std::endian::little, "the values are little-endian");
  const Descriptor descriptor = open_to_read(path, ExitCode::data);
  if (tensor.type == "F32") {
    read_at(descriptor, path, file.values + tensor.begin, std::as_writable_bytes(values), ExitCode::data);
    return;
  }
  std::vector<std::uint16_t> halves(values.size());
  read_at(descriptor, path, file.values + tensor.begin, std::as_writable_bytes(std::span(halves)), ExitCode::data);
  for (std::size_t i = 0; i < halves.size(); ++i) values[i] = std::bit_cast<float>(std::uint32_t{halves[i]} << 16);
}

}  // namespace nanorun
