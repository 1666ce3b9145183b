#include "metrics/fields.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace gpulet::metrics {
namespace {

struct Theirs {
  const char* name;
  unsigned id;
  const char* type;
  const char* help;
};

// dcgm-exporter's default metrics: its etc/default-counters.csv, with DCGM's ids.
constexpr Theirs kDefaults[] = {
    {"DCGM_FI_DRIVER_VERSION", 1, "label", "Driver Version"},
    {"DCGM_FI_DEV_SM_CLOCK", 100, "gauge", "SM clock frequency (in MHz)."},
    {"DCGM_FI_DEV_MEM_CLOCK", 101, "gauge", "Memory clock frequency (in MHz)."},
    {"DCGM_FI_DEV_MEMORY_TEMP", 140, "gauge", "Memory temperature (in C)."},
    {"DCGM_FI_DEV_GPU_TEMP", 150, "gauge", "GPU temperature (in C)."},
    {"DCGM_FI_DEV_POWER_USAGE", 155, "gauge", "Power draw (in W)."},
    {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 156, "counter", "Total energy consumption since boot (in mJ)."},
    {"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 202, "counter", "Total number of PCIe retries."},
    {"DCGM_FI_DEV_GPU_UTIL", 203, "gauge", "GPU utilization (in %)."},
    {"DCGM_FI_DEV_MEM_COPY_UTIL", 204, "gauge", "Memory utilization (in %)."},
    {"DCGM_FI_DEV_ENC_UTIL", 206, "gauge", "Encoder utilization (in %)."},
    {"DCGM_FI_DEV_DEC_UTIL", 207, "gauge", "Decoder utilization (in %)."},
    {"DCGM_FI_DEV_XID_ERRORS", 230, "gauge", "Value of the last XID error encountered."},
    {"DCGM_FI_DEV_FB_FREE", 251, "gauge", "Framebuffer memory free (in MiB)."},
    {"DCGM_FI_DEV_FB_USED", 252, "gauge", "Framebuffer memory used (in MiB)."},
    {"DCGM_FI_DEV_FB_RESERVED", 253, "gauge", "Framebuffer memory reserved (in MiB)."},
    {"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 393, "counter",
     "Number of remapped rows for uncorrectable errors"},
    {"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 394, "counter",
     "Number of remapped rows for correctable errors"},
    {"DCGM_FI_DEV_ROW_REMAP_FAILURE", 395, "gauge", "Whether remapping of rows has failed"},
    {"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 449, "counter",
     "Total number of NVLink bandwidth counters for all lanes."},
    {"DCGM_FI_DEV_VGPU_LICENSE_STATUS", 526, "gauge", "vGPU License status"},
    {"DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1001, "gauge", "Ratio of time the graphics engine is active."},
    {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1004, "gauge", "Ratio of cycles the tensor (HMMA) pipe is active."},
    {"DCGM_FI_PROF_DRAM_ACTIVE", 1005, "gauge",
     "Ratio of cycles the device memory interface is active sending or receiving data."},
    {"DCGM_FI_PROF_PCIE_TX_BYTES", 1009, "gauge",
     "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - "
     "in "
     "bytes per second."},
    {"DCGM_FI_PROF_PCIE_RX_BYTES", 1010, "gauge",
     "The rate of data received over the PCIe bus - including both protocol headers and data payloads - in "
     "bytes per second."},
};
// The metrics that its files have in comments.
constexpr Theirs kCommented[] = {
    {"DCGM_FI_NVML_VERSION", 2, "label", "NVML Version"},
    {"DCGM_FI_DEV_BRAND", 51, "label", "Device Brand"},
    {"DCGM_FI_DEV_SERIAL", 53, "label", "Device Serial Number"},
    {"DCGM_FI_DEV_OEM_INFOROM_VER", 56, "label", "OEM inforom version"},
    {"DCGM_FI_DEV_ECC_INFOROM_VER", 80, "label", "ECC inforom version"},
    {"DCGM_FI_DEV_POWER_INFOROM_VER", 81, "label", "Power management object inforom version"},
    {"DCGM_FI_DEV_INFOROM_IMAGE_VER", 82, "label", "Inforom image version"},
    {"DCGM_FI_DEV_VBIOS_VERSION", 85, "label", "VBIOS version of the device"},
    {"DCGM_FI_DEV_POWER_VIOLATION", 240, "counter", "Throttling duration due to power constraints (in ns)."},
    {"DCGM_FI_DEV_THERMAL_VIOLATION", 241, "counter",
     "Throttling duration due to thermal constraints (in ns)."},
    {"DCGM_FI_DEV_SYNC_BOOST_VIOLATION", 242, "counter",
     "Throttling duration due to sync-boost constraints (in ns)."},
    {"DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", 243, "counter",
     "Throttling duration due to board limit constraints (in ns)."},
    {"DCGM_FI_DEV_LOW_UTIL_VIOLATION", 244, "counter", "Throttling duration due to low utilization (in ns)."},
    {"DCGM_FI_DEV_RELIABILITY_VIOLATION", 245, "counter",
     "Throttling duration due to reliability constraints (in ns)."},
    {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 310, "counter", "Total number of single-bit volatile ECC errors."},
    {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 311, "counter", "Total number of double-bit volatile ECC errors."},
    {"DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", 312, "counter", "Total number of single-bit persistent ECC errors."},
    {"DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 313, "counter", "Total number of double-bit persistent ECC errors."},
    {"DCGM_FI_DEV_RETIRED_SBE", 390, "counter", "Total number of retired pages due to single-bit errors."},
    {"DCGM_FI_DEV_RETIRED_DBE", 391, "counter", "Total number of retired pages due to double-bit errors."},
    {"DCGM_FI_DEV_RETIRED_PENDING", 392, "counter", "Total number of pages pending retirement."},
    {"DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 409, "counter",
     "Total number of NVLink flow-control CRC errors."},
    {"DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 419, "counter",
     "Total number of NVLink data CRC errors."},
    {"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 429, "counter", "Total number of NVLink retries."},
    {"DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 439, "counter",
     "Total number of NVLink recovery errors."},
    {"DCGM_FI_PROF_SM_ACTIVE", 1002, "gauge", "The ratio of cycles an SM has at least 1 warp assigned."},
    {"DCGM_FI_PROF_SM_OCCUPANCY", 1003, "gauge", "The ratio of number of warps resident on an SM."},
    {"DCGM_FI_PROF_PIPE_FP64_ACTIVE", 1006, "gauge", "Ratio of cycles the fp64 pipes are active."},
    {"DCGM_FI_PROF_PIPE_FP32_ACTIVE", 1007, "gauge", "Ratio of cycles the fp32 pipes are active."},
    {"DCGM_FI_PROF_PIPE_FP16_ACTIVE", 1008, "gauge", "Ratio of cycles the fp16 pipes are active."},
};

void expect_same(const Theirs& theirs) {
  const FieldInfo* ours = find_field(theirs.name);
  ASSERT_NE(ours, nullptr) << theirs.name;
  EXPECT_EQ(ours->name, theirs.name);
  EXPECT_EQ(ours->id, theirs.id) << theirs.name;
  EXPECT_EQ(type_name(ours->type), theirs.type) << theirs.name;
  EXPECT_EQ(ours->help, theirs.help) << theirs.name;
}

TEST(Fields, MatchTheExportersNamesIdsTypesAndHelp) {
  std::set<std::string_view> theirs, ours;
  for (const auto& one : kDefaults) {
    expect_same(one);
    theirs.insert(one.name);
  }
  for (const auto& field : fields()) {
    if (field.by_default) ours.insert(field.name);
  }
  EXPECT_EQ(ours, theirs);
  for (const auto& one : kCommented) {
    expect_same(one);
    EXPECT_FALSE(find_field(one.name)->by_default) << one.name;
  }
}

TEST(Fields, AliasesResolve) {
  EXPECT_EQ(find_field("dcgm_power_usage")->field, Field::kPower);
  EXPECT_EQ(find_field("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")->field, Field::kClockEvents);
  EXPECT_EQ(find_field("DCGM_FI_PROF_TENSOR_UTIL_RATIO")->field, Field::kTensorActive);
  EXPECT_EQ(find_field("DCGM_FI_DEV_GPU_UTIL_RATIO"), nullptr)
      << "percent in one release, a ratio in the next";
  EXPECT_EQ(find_field(""), nullptr);
  for (const auto& field : fields()) {
    EXPECT_EQ(&field_info(field.field), &field);
    EXPECT_EQ(find_field(field.name), &field);
    for (const auto other : other_names(field.field)) EXPECT_EQ(find_field(other), &field) << other;
  }
}

TEST(Fields, NamesOfLinks) {
  const struct {
    const char* name;
    std::optional<LinkField> field;
  } cases[] = {
      {"DCGM_FI_DEV_NVLINK_BANDWIDTH_L0", LinkField{Field::kLinkBandwidth, 0}},
      {"DCGM_FI_DEV_NVLINK_BANDWIDTH_L17", LinkField{Field::kLinkBandwidth, 17}},
      {"DCGM_FI_DEV_NVLINK_THROUGHPUT_L6", LinkField{Field::kLinkBandwidth, 6}},
      {"DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L10", LinkField{Field::kLinkCrcFlit, 10}},
      {"DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_L3_TOTAL", LinkField{Field::kLinkCrcData, 3}},
      {"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L1", LinkField{Field::kLinkReplay, 1}},
      {"DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L5", LinkField{Field::kLinkRecovery, 5}},
      {"DCGM_FI_PROF_NVLINK_L4_TX_BYTES", LinkField{Field::kLinkTxBytes, 4}},
      {"DCGM_FI_PROF_NVLINK_L12_RX_BYTES", LinkField{Field::kLinkRxBytes, 12}},
      {"DCGM_FI_DEV_NVLINK_BANDWIDTH_L18", std::nullopt},
      {"DCGM_FI_DEV_NVLINK_BANDWIDTH_L03", std::nullopt},
      {"DCGM_FI_DEV_NVLINK_BANDWIDTH_L", std::nullopt},
      {"DCGM_FI_DEV_NVLINK_BANDWIDTH_L-1", std::nullopt},
      {"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", std::nullopt},
      {"DCGM_FI_PROF_NVLINK_L_TX_BYTES", std::nullopt},
      {"", std::nullopt},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(find_link_field(one.name), one.field) << one.name;
    EXPECT_TRUE(!one.field || find_field(one.name) == nullptr) << one.name;
  }
}

TEST(Fields, AbsentFieldsHaveAReason) {
  EXPECT_EQ(unserved_reason("DCGM_FI_DEV_NVSWITCH_LINK_ID"), "NVSwitches are not NVML's");
  EXPECT_EQ(unserved_reason("DCGM_FI_DEV_NVLINK_COUNT_SYMBOL_BER"), "bit error rates and port counters");
  EXPECT_EQ(unserved_reason("DCGM_FI_DEV_NVLINK_BANDWIDTH_L3"), std::nullopt) << "served";
  EXPECT_EQ(unserved_reason("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"), std::nullopt) << "served";
  EXPECT_EQ(unserved_reason("DCGM_EXP_GPU_HEALTH_STATUS"),
            "DCGM's health watches: gpulet judges health itself");
  EXPECT_EQ(unserved_reason("something"), std::nullopt);
}

}  // namespace
}  // namespace gpulet::metrics
