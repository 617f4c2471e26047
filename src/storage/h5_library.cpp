#include "src/storage/h5_library.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <thread>

namespace nanorun::h5 {

namespace {

std::recursive_mutex& mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

}  // namespace

Locked::Locked() : guard_(mutex()) {
  [[maybe_unused]] static const herr_t silent = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

std::string version() {
  const Locked lock;
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

Reason last_reason() {
  Reason reason;
  const auto keep_innermost = [](unsigned n, const H5E_error2_t* error, void* reason) -> herr_t {
    const std::string text = error->desc == nullptr ? "" : error->desc;
    auto& [innermost, of_system, number] = *static_cast<Reason*>(reason);
    constexpr std::string_view of_error = "errno = ";
    const std::size_t at = text.find(of_error);
    if (n == 0) innermost = text;
    if (at != std::string::npos) number = std::atoi(text.c_str() + at + of_error.size());
    if (at != std::string::npos || error->min_num == H5E_MPI || error->min_num == H5E_NOSPACE) of_system = true;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &reason);
  std::ranges::replace(reason.text, '\n', ' ');
  // HDF5 adds the time, addresses and sizes to the message of a failed system call.
  constexpr std::string_view of_call = "error message = '";
  if (const auto at = reason.text.find(of_call); at != std::string::npos) {
    const std::string what = reason.text.substr(0, reason.text.find_first_of(",:"));
    const std::string rest = reason.text.substr(at + of_call.size());
    reason.text = what + ": " + rest.substr(0, rest.find('\''));
  }
  return reason;
}

hid_t open_patiently(const std::function<hid_t()>& open, const std::function<bool(int error)>& passes) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (true) {
    const hid_t id = open();
    if (id >= 0 || std::chrono::steady_clock::now() >= end || !passes(last_reason().error)) return id;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string class_name(H5T_class_t type) {
  constexpr const char* names[] = {"integer",  "floating-point", "time",        "text",  "bit field", "opaque",
                                   "compound", "reference",      "enumeration", "array", "array"};
  const auto index = static_cast<std::size_t>(type);
  return index < std::size(names) ? names[index] : "unknown";
}

std::string type_name(hid_t type) {
  const H5T_class_t kind = H5Tget_class(type);
  const std::size_t size = H5Tget_size(type);
  if (kind != H5T_INTEGER && kind != H5T_FLOAT) return class_name(kind);
  const bool is_unsigned = kind == H5T_INTEGER && H5Tget_sign(type) == H5T_SGN_NONE;
  const bool is_padded = H5Tget_precision(type) != 8 * size;
  return fmt::format("{}{}{}{}{}", size > 1 && H5Tget_order(type) == H5T_ORDER_BE ? "big-endian " : "",
                     is_unsigned ? "u" : "", kind == H5T_FLOAT ? "float" : "int", 8 * size,
                     is_padded ? fmt::format(" of {} bits", H5Tget_precision(type)) : "");
}

}  // namespace nanorun::h5
