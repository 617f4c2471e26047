#pragma once
// Variables of the environment, for as long as a test wants them.

#include <cstdlib>
#include <ctime>
#include <optional>
#include <string>

namespace nanorun {

/// Sets a variable of the environment while it lives; a null `value` unsets it.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) {
    if (value != nullptr) {
      ::setenv(name_, value, 1);
    } else {
      ::unsetenv(name_);
    }
    ::tzset();
  }

  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace nanorun
