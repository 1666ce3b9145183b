#include "health/xid_catalogue.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gpulet::health {
namespace {

TEST(XidCatalogue, IsSortedWithNoneTwiceAndWhole) {
  EXPECT_EQ(std::ranges::adjacent_find(xids(), [](const Xid& a, const Xid& b) { return a.code >= b.code; }),
            xids().end());
  for (const auto& xid : xids()) {
    EXPECT_FALSE(xid.mnemonic.empty() || xid.description.empty()) << xid.code;
    EXPECT_EQ(xid.description.find('\n'), std::string_view::npos) << xid.code;
    EXPECT_EQ(find_xid(xid.code), &xid);
  }
  EXPECT_EQ(find_xid(0), nullptr);
  EXPECT_EQ(find_xid(7), nullptr);
  EXPECT_EQ(find_xid(100'000), nullptr);
}

TEST(XidCatalogue, KnowsTheActions) {
  const std::pair<std::uint64_t, XidAction> rows[] = {
      {13, XidAction::kRestartApp}, {31, XidAction::kRestartApp},  {43, XidAction::kNone},
      {48, XidAction::kDecode},     {62, XidAction::kResetGpu},    {63, XidAction::kNone},
      {74, XidAction::kDecode},     {79, XidAction::kRestartNode}, {85, XidAction::kRestartApp},
      {94, XidAction::kRestartApp}, {95, XidAction::kResetGpu},    {100, XidAction::kRestartApp},
      {109, XidAction::kResetGpu},  {119, XidAction::kResetGpu},   {130, XidAction::kRestartApp},
      {151, XidAction::kRestartVm}, {154, XidAction::kDecode},     {171, XidAction::kNone}};
  for (const auto& [code, action] : rows) {
    ASSERT_NE(find_xid(code), nullptr) << code;
    EXPECT_EQ(name(find_xid(code)->action), name(action)) << code;
  }
}

TEST(XidCatalogue, DescribesInOneLine) {
  EXPECT_EQ(describe_xid(79), "XID 79: GPU has fallen off the bus");
  EXPECT_EQ(describe_xid(48), "XID 48: double-bit ECC error");
  EXPECT_EQ(describe_xid(999), "XID 999: not in NVIDIA's catalogue");
}

}  // namespace
}  // namespace gpulet::health
