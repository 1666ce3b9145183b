#include "inventory/snapshot.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace gpulet::inventory {
namespace {

TEST(PciAddress, BothFormsInAnyCase) {
  const PciAddress expected{0, 0x1b, 0, 0};
  EXPECT_EQ(*PciAddress::from_text("00000000:1B:00.0"), expected);
  EXPECT_EQ(*PciAddress::from_text("0000:1b:00.0"), expected);
  EXPECT_EQ(expected.nvml_text(), "00000000:1B:00.0");
  EXPECT_EQ(expected.sysfs_text(), "0000:1b:00.0");
  EXPECT_EQ(PciAddress::from_text("00010009:01:1f.7")->sysfs_text(), "10009:01:1f.7");
}

TEST(PciAddress, RefusesInvalidText) {
  for (const char* text :
       {"", "1b:00.0", "0000:1b:00", "0000:1b:00.0 ", " 0000:1b:00.0", "0000:1b:20.0", "0000:1b:00.8",
        "0000:1bb:00.0", "000000000:1b:00.0", "-1:1b:00.0", "0x00:1b:00.0", "0000.1b.00.0"}) {
    const auto address = PciAddress::from_text(text);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.error().code(), Code::kInvalidArgument);
  }
}

RC_GTEST_PROP(PciAddress, ParsesWhatItPrints, (std::uint32_t domain)) {
  const PciAddress address{domain, *rc::gen::inRange(0u, 256u), *rc::gen::inRange(0u, 32u),
                           *rc::gen::inRange(0u, 8u)};
  RC_ASSERT(*PciAddress::from_text(address.nvml_text()) == address);
  RC_ASSERT(*PciAddress::from_text(address.sysfs_text()) == address);
}

TEST(Snapshot, FindsByUuid) {
  Snapshot snapshot;
  snapshot.gpus.resize(2);
  snapshot.gpus[1].uuid = DeviceUuid("GPU-1");
  EXPECT_EQ(snapshot.find(DeviceUuid("GPU-1")), &snapshot.gpus[1]);
  EXPECT_EQ(snapshot.find(DeviceUuid("GPU-2")), nullptr);
}

}  // namespace
}  // namespace gpulet::inventory
