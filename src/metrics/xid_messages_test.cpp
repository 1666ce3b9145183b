#include "metrics/xid_messages.h"

#include <gtest/gtest.h>

namespace gpulet::metrics {
namespace {

TEST(XidMessages, AreThoseOfDcgmExporter) {
  const std::pair<std::uint64_t, const char*> cases[] = {
      {0, "No Error"},
      {1, "Invalid or corrupted push buffer stream"},
      {4, "Invalid or corrupted push buffer stream"},
      {5, "Unused"},
      {13, "Graphics Engine Exception"},
      {43, "GPU stopped processing"},
      {48, "Double Bit ECC Error"},
      {63, "ECC page retirement or row remapping recording event"},
      {74, "NVLINK Error"},
      {79, "GPU has fallen off the bus"},
      {94, "Contained ECC error"},
      {95, "Uncontained ECC error"},
      {119, "GSP RPC Timeout"},
      {135, "Robust Channel CE19 Error"},
      {154, "GPU Recovery Action Changed"},
      {172, "Uncorrectable SRAM Error"},
      {173, "Unknown Error"},
      {~std::uint64_t{0}, "Unknown Error"},
  };
  for (const auto& [code, text] : cases) EXPECT_EQ(dcgm_xid_message(code), text) << code;
}

}  // namespace
}  // namespace gpulet::metrics
