#include "health/state_file.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"

namespace gpulet::health {
namespace {

WallTime wall(std::int64_t milliseconds) { return WallTime(std::chrono::milliseconds(milliseconds)); }

Saved example() {
  Saved saved{"boot-1", {}};
  saved.gpus.push_back({DeviceUuid("GPU-0"), "0000:3b:00.0", 2, wall(1763712000123), {}});
  saved.gpus[0].faults.push_back({FaultClass::kXidReboot, 79, kNoInstance, kNoInstance, wall(1763711990000),
                                  wall(1763711990500), 3, true, ""});
  saved.gpus.push_back({DeviceUuid("GPU-1"), "", 0, std::nullopt, {}});
  saved.gpus[1].faults.push_back(
      {FaultClass::kCordoned, 0, 2, 0, wall(5), wall(6), 1, false, "waits for its new riser"});
  return saved;
}

constexpr const char* kExample =
    "gpulet-health 1\n"
    "boot boot-1\n"
    "gpu GPU-0 0000:3b:00.0 2 1763712000123\n"
    "fault xid-reboot 79 - - 1763711990000 1763711990500 3 1\n"
    "gpu GPU-1 - 0 -\n"
    "fault cordoned 0 2 0 5 6 1 0 waits for its new riser\n"
    "end\n";

TEST(StateFile, ReadsWhatItWrites) {
  EXPECT_EQ(format_state(example()), kExample);
  const auto read = parse_state(kExample);
  ASSERT_TRUE(read) << read.error().text();
  EXPECT_EQ(*read, example());
}

TEST(StateFile, RefusesWhatIsNotOneWithTheLine) {
  const std::string head = "gpulet-health 1\nboot b\n";
  const std::pair<std::string, const char*> rows[] = {
      {"", "line 1 "},
      {"gpulet-health 2\nboot b\nend\n", "line 1 "},
      {"gpulet-health 1\nend\n", "line 2 "},
      {head, "line 3 "},
      {head + "gpu\nend\n", "line 3 "},
      {head + "gpu GPU-0 - 0\nend\n", "line 3 "},
      {head + "gpu GPU-0 - -1 -\nend\n", "line 3 "},
      {head + "gpu GPU-0 - 0 soon\nend\n", "line 3 "},
      {head + "gpu GPU-0 - 0 99999999999999\nend\n", "line 3 "},
      {head + "fault lost 0 - - 1 1 1 0\nend\n", "line 3 "},  // of no GPU
      {head + "gpu GPU-0 - 0 -\nfault sick 0 - - 1 1 1 0\nend\n", "line 4 "},
      {head + "gpu GPU-0 - 0 -\nfault lost 0 - 1 1 1 1 0\nend\n", "line 4 "},
      {head + "gpu GPU-0 - 0 -\nfault lost 0 - - 2 1 1 0\nend\n", "line 4 "},
      {head + "gpu GPU-0 - 0 -\nfault lost 0 - - 1 1 1 2\nend\n", "line 4 "},
      {head + "gpu GPU-0 - 0 -\nfault lost 0 - - 1 1 1 0\n", "line 5 "},  // cut off
  };
  for (const auto& [text, line] : rows) {
    const auto read = parse_state(text);
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().code(), Code::kInvalidArgument);
    EXPECT_TRUE(read.error().message().starts_with(line)) << read.error().text() << " for " << text;
  }
}

RC_GTEST_PROP(StateFile, AnyTextIsWrittenAsOneLine, (const std::string& detail, const std::string& uuid)) {
  Saved saved = example();
  saved.gpus[0].faults[0].detail = detail;
  saved.gpus[0].uuid = DeviceUuid(uuid);
  const auto read = parse_state(format_state(saved));
  RC_ASSERT(read.has_value());
  RC_ASSERT(format_state(*read) == format_state(saved));
}

class StateFileOnDisk : public ::testing::Test {
 protected:
  StateFileOnDisk() {
    char name[] = "/tmp/gpulet-state-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~StateFileOnDisk() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(StateFileOnDisk, IsWrittenWhole) {
  const auto path = folder_ + "/a/state";
  const auto missing = read_state(path);
  ASSERT_TRUE(missing) << missing.error().text();
  EXPECT_TRUE(missing->gpus.empty());
  ASSERT_TRUE(write_state(path, example()));
  const auto read = read_state(path);
  ASSERT_TRUE(read) << read.error().text();
  EXPECT_EQ(*read, example());
  struct stat status{};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(StateFileOnDisk, SaysWhichFileIsWrong) {
  const auto path = folder_ + "/state";
  ASSERT_TRUE(write_file_atomic(path, "nonsense"));
  const auto read = read_state(path);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().text(), path + ": line 1 is not 'gpulet-health 1'");
}

TEST_F(StateFileOnDisk, KnowsTheBoot) {
  ASSERT_TRUE(write_file_atomic(folder_ + "/boot_id", "0123-4567\n"));
  EXPECT_EQ(read_boot_id(folder_ + "/boot_id").value_or("?"), "0123-4567");
  EXPECT_FALSE(read_boot_id(folder_ + "/none"));
}

}  // namespace
}  // namespace gpulet::health
