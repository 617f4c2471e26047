// The attributes of a file's objects.

#include <fmt/format.h>

#include "src/storage/h5.hpp"
#include "src/storage/h5_library.hpp"

namespace nanorun::h5 {

namespace {

constexpr std::size_t max_attribute_text = 64'000;  // an object header message holds less than 64 KiB

}  // namespace

void File::make_attribute(const std::string& object, const std::string& name, hid_t disk_type, hid_t type,
                          const void* value) {
  const std::string label = object + " @" + name;
  const Handle owner = this->object(object);
  if (has_attribute(object, name)) check(H5Adelete(owner.get(), name.c_str()), label, "cannot be replaced");
  const Handle space = own(H5Screate(H5S_SCALAR), H5Sclose, label, "no extent");
  const Handle attribute = own(H5Acreate2(owner.get(), name.c_str(), disk_type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
                               H5Aclose, label, "cannot create the attribute");
  check(H5Awrite(attribute.get(), type, value), label, "cannot be written");
}

void File::write_attribute(const std::string& object, const std::string& name, const std::string& value) {
  const Call call{watch()};
  const std::string label = object + " @" + name;
  if (value.size() > max_attribute_text || value.find('\0') != std::string::npos) fail(label, "unfit for an attribute");
  const Handle type = own(H5Tcopy(H5T_C_S1), H5Tclose, label, "text type");
  // One byte longer than the text: HDF5 has no empty string, and readers may expect the final zero.
  check(H5Tset_size(type.get(), value.size() + 1), label, "text type");
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8), label, "text type");
  make_attribute(object, name, type.get(), type.get(), value.c_str());
}

void File::write_attribute(const std::string& object, const std::string& name, std::uint64_t value) {
  const Call call{watch()};
  make_attribute(object, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, &value);
}

void File::write_attribute(const std::string& object, const std::string& name, double value) {
  const Call call{watch()};
  make_attribute(object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
}

bool File::has_attribute(const std::string& object, const std::string& name) const {
  Locked locked;
  const htri_t found = H5Aexists(this->object(object).get(), name.c_str());
  if (found < 0) fail(object + " @" + name, "cannot be looked up");
  return found > 0;
}

/// An attribute that holds one value of the given class.
Handle File::attribute(const std::string& object, const std::string& name, H5T_class_t expected) const {
  const std::string label = object + " @" + name;
  Handle attribute =
      own(H5Aopen(this->object(object).get(), name.c_str(), H5P_DEFAULT), H5Aclose, label, "no such attribute");
  const Handle space = own(H5Aget_space(attribute.get()), H5Sclose, label, "no extent");
  const Handle type = own(H5Aget_type(attribute.get()), H5Tclose, label, "no type");
  if (H5Sget_simple_extent_npoints(space.get()) != 1) fail(label, "holds more than one value");
  if (H5Tget_class(type.get()) != expected) {
    fail(label, fmt::format("holds a value of another type than expected: {} instead of {}", type_name(type.get()),
                            class_name(expected)));
  }
  if (H5Tget_size(type.get()) > max_attribute_text + 1) fail(label, "too large for an attribute");
  return attribute;
}

std::string File::read_text_attribute(const std::string& object, const std::string& name) const {
  Locked locked;
  const std::string label = object + " @" + name;
  const Handle id = attribute(object, name, H5T_STRING);
  const Handle type = own(H5Aget_type(id.get()), H5Tclose, label, "no type");
  const std::size_t size = H5Tget_size(type.get());
  if (H5Tis_variable_str(type.get()) != 0) fail(label, "is not fixed-length text");
  std::string text(size, '\0');
  check(H5Aread(id.get(), type.get(), text.data()), label, "cannot be read");
  return text.c_str();
}

std::uint64_t File::read_integer_attribute(const std::string& object, const std::string& name) const {
  Locked locked;
  std::uint64_t value = 0;
  const Handle id = attribute(object, name, H5T_INTEGER);
  check(H5Aread(id.get(), H5T_NATIVE_UINT64, &value), object + " @" + name, "cannot be read");
  return value;
}

double File::read_real_attribute(const std::string& object, const std::string& name) const {
  Locked locked;
  double value = 0;
  const Handle id = attribute(object, name, H5T_FLOAT);
  check(H5Aread(id.get(), H5T_NATIVE_DOUBLE, &value), object + " @" + name, "cannot be read");
  return value;
}

std::string File::format() const { return has_attribute("/", "format") ? read_text_attribute("/", "format") : ""; }

}  // namespace nanorun::h5
