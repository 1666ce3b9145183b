#include "nvml/return_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>

#include "nvml/library.h"

namespace gpulet::nvml {
namespace {

// The codes of nvml.h itself, so that a new one needs a row.
std::map<int, std::string> codes_of_header() {
  std::ifstream header(GPULET_NVML_HEADER);
  const std::regex code(R"(NVML_ERROR_(\w+)\s*=\s*(\d+))");
  std::map<int, std::string> codes;
  for (std::string line; std::getline(header, line);) {
    std::smatch found;
    if (std::regex_search(line, found, code)) codes.emplace(std::stoi(found[2]), found[1]);
  }
  return codes;
}

TEST(ReturnCodes, TableHasEveryCodeOfTheHeader) {
  const auto header = codes_of_header();
  ASSERT_GT(header.size(), 30u);
  std::map<int, std::string> table;
  for (const auto& row : return_codes()) table.emplace(row.nvml_return, row.name);
  EXPECT_EQ(table, header);
}

TEST(ReturnCodes, MeaningOfAnErrorIsThatOfItsCode) {
  for (const auto& row : return_codes()) EXPECT_EQ(meaning_of(Error(row.code, "x")), row.meaning) << row.name;
}

TEST(ReturnCodes, OnlyOneCodeMeansLostAndOneMeansReset) {
  for (const auto& row : return_codes()) {
    EXPECT_EQ(row.meaning == Meaning::kLost, row.nvml_return == NVML_ERROR_GPU_IS_LOST) << row.name;
    EXPECT_EQ(row.meaning == Meaning::kNeedsReset, row.nvml_return == NVML_ERROR_RESET_REQUIRED) << row.name;
    EXPECT_EQ(is_device_fault(Error(row.code, "x")),
              row.meaning == Meaning::kLost || row.meaning == Meaning::kNeedsReset)
        << row.name;
  }
}

TEST(ReturnCodes, UnlistedCodesMeanNoValueNow) {
  for (const int code : {-1, 31, 500, 998, 1000})
    EXPECT_EQ(find_return_code(code).meaning, Meaning::kNoValueNow) << code;
}

TEST(ReturnCodes, APermissionErrorNamesTheRight) {
  const Api api{};
  const auto status = to_status(api, NVML_ERROR_NO_PERMISSION, "nvmlDeviceGetMemoryInfo");
  EXPECT_EQ(
      status.error().message(),
      "nvmlDeviceGetMemoryInfo: NVML error NO_PERMISSION; it needs CAP_SYS_ADMIN or the MIG monitor right "
      "(NVIDIA_MIG_MONITOR_DEVICES)");
  EXPECT_NE(needed_right("nvmlDeviceCreateGpuInstanceWithPlacement").find("NVIDIA_MIG_CONFIG_DEVICES"),
            std::string_view::npos);
  EXPECT_NE(needed_right("nvmlDeviceGetGpuInstanceById").find("NVIDIA_MIG_CONFIG_DEVICES"),
            std::string_view::npos);
  for (const char* const setter : {"nvmlDeviceSetComputeMode", "nvmlDeviceSetMigMode"})
    EXPECT_EQ(needed_right(setter), "CAP_SYS_ADMIN") << setter;
}

TEST(ReturnCodes, CallsAreCountedByFunctionAndCode) {
  const auto count_of = [](const std::string& function, const std::string& code) -> std::uint64_t {
    for (const auto& one : call_counts()) {
      if (one.function == function && one.code == code) return one.count;
    }
    return 0;
  };
  const auto answer_with = [](nvmlReturn_t code) {
    return call_nvml(Api{}, +[](nvmlReturn_t it) { return it; }, "nvmlTestFunction", code);
  };
  EXPECT_TRUE(answer_with(NVML_SUCCESS));
  EXPECT_FALSE(answer_with(NVML_ERROR_NOT_READY));
  EXPECT_FALSE(answer_with(NVML_ERROR_NOT_READY));
  EXPECT_FALSE(answer_with(static_cast<nvmlReturn_t>(77)));
  EXPECT_EQ(count_of("nvmlTestFunction", "SUCCESS"), 1u);
  EXPECT_EQ(count_of("nvmlTestFunction", "NOT_READY"), 2u);
  EXPECT_EQ(count_of("nvmlTestFunction", "77"), 1u);
}

}  // namespace
}  // namespace gpulet::nvml
