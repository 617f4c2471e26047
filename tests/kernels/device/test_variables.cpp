#include "kernels/device/variables.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "tests/support/variable.hpp"

namespace nanorun::kernels {
namespace {

constexpr const char *tier = "NANORUN_TIER", *shared_kb = "NANORUN_SM_SHARED_KB";

/// Neither is set, unless the test does it.
class DeviceVariablesTest : public testing::Test {
 protected:
  static std::string refused() {
    try {
      device_variables();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  }

 private:
  Variable no_tier_{tier, nullptr}, no_shared_kb_{shared_kb, nullptr};
};

TEST_F(DeviceVariablesTest, LimitNothingUnlessSet) {
  const DeviceVariables unset = device_variables();
  EXPECT_GT(unset.capability, 120);
  EXPECT_GT(unset.shared_bytes, 228 << 10);
  const Variable empty_tier(tier, ""), empty_shared_kb(shared_kb, "");
  const DeviceVariables empty = device_variables();
  EXPECT_EQ(empty.capability, unset.capability);
  EXPECT_EQ(empty.shared_bytes, unset.shared_bytes);
}

TEST_F(DeviceVariablesTest, AreRead) {
  for (const auto& [text, capability] : {std::pair("8.0", 80), {"8.9", 89}, {"9.0", 90}}) {
    const Variable set(tier, text);
    EXPECT_EQ(device_variables().capability, capability);
  }
  for (const auto& [text, kb] : {std::pair("100", 100), {"228", 228}}) {
    const Variable set(shared_kb, text);
    EXPECT_EQ(device_variables().shared_bytes, 1024 * kb);
  }
}

TEST_F(DeviceVariablesTest, OfOtherValuesAreRefused) {
  for (const char* text : {"7.5", "8", "80", "8.00", "8.6", "10.0", "hopper", " 8.0", "8.0 "}) {
    const Variable set(tier, text);
    EXPECT_EQ(refused(), "NANORUN_TIER=" + std::string(text) + ": must be 8.0, 8.9 or 9.0");
  }
  for (const char* text : {"99", "229", "0", "-100", "+100", "100.0", "100k", "1e2", "many", " 100", "99999999999"}) {
    const Variable set(shared_kb, text);
    EXPECT_EQ(refused(), "NANORUN_SM_SHARED_KB=" + std::string(text) + ": must be a whole number from 100 to 228");
  }
}

}  // namespace
}  // namespace nanorun::kernels
