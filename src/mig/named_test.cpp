#include "mig/named.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "mig/test_states.h"

namespace gpulet::mig {
namespace {

State state_on(const std::string& machine, unsigned index) {
  return states::state_of(states::machine(machine)->gpus[0], index);
}

TEST(Named, WithoutAFileByTheHardware) {
  const std::vector<State> node = {state_on("hgx-h100", 0), state_on("t4", 1)};
  const auto layouts = named_layouts(std::string(), "all-3g.40gb", node);
  ASSERT_TRUE(layouts) << layouts.error().text();
  ASSERT_TRUE(layouts->at(0));
  EXPECT_EQ(describe(layouts->at(0)->layout), "2 \u00d7 3g.40gb");
  EXPECT_EQ(layouts->at(0)->place, "");
  EXPECT_FALSE(layouts->at(1));
  EXPECT_EQ(named_layouts(std::string(), "all-9g.40gb", node).error().code(), Code::kNotFound);
}

TEST(Named, WithAFileByItAndWithItsPlace) {
  const std::string path = (std::filesystem::temp_directory_path() / "gpulet-named-").string() +
                           std::to_string(::getpid()) + ".yaml";
  ASSERT_TRUE(write_file_atomic(path, R"(version: v1
mig-configs:
  mine:
    - devices: all
      mig-enabled: false
    - devices: [1]
      mig-enabled: true
      mig-devices: {"3g.40gb": 1}
  other:
    - {devices: [7], mig-enabled: false}
)"));
  const std::vector<State> node = {state_on("hgx-h100", 0), state_on("hgx-h100", 1)};
  const auto mine = named_layouts(path, "mine", node);
  const auto other = named_layouts(path, "other", node);
  const auto none = named_layouts(path, "mein", node);
  std::filesystem::remove(path);
  ASSERT_TRUE(mine) << mine.error().text();
  EXPECT_EQ(mine->at(0), (LayoutAt{{}, path + ":4:7"}));
  EXPECT_EQ(mine->at(1), (LayoutAt{{true, {{"3g.40gb", 1}}}, path + ":6:7"}));
  ASSERT_TRUE(other);
  EXPECT_EQ(*other, (std::vector<std::optional<LayoutAt>>(2)));
  EXPECT_EQ(none.error().text(), "no config 'mein' in " + path + "; there are mine, other");
  EXPECT_EQ(named_layouts(path, "mine", node).error().code(), Code::kNotFound) << "the file has gone";
}

}  // namespace
}  // namespace gpulet::mig
