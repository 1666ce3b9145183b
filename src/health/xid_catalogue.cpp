#include "health/xid_catalogue.h"

#include <algorithm>
#include <array>

namespace gpulet::health {
namespace {

using enum XidAction;

constexpr auto kXids = std::to_array<Xid>({
    {8, "FIFO_ERROR_IDLE_TIMEOUT", "GPU stopped processing", kRestartApp},
    {11, "GR_ERROR_MISSING_HW", "invalid or corrupt push buffer", kRestartApp},
    {13, "GR_EXCEPTION", "graphics engine exception", kRestartApp},
    {14, "FAKE_ERROR", "error injected from user space", kNone},
    {25, "GR_ILLEGAL_NOTIFY", "invalid or illegal push buffer", kRestartApp},
    {31, "FIFO_ERROR_MMU_ERR_FLT", "GPU memory page fault", kRestartApp},
    {32, "PBDMA_ERROR", "corrupt push buffer on its way to the GPU", kRestartApp},
    {37, "FECS_ERR_UNIMP_FIRMWARE_METHOD", "driver firmware error: method not implemented", kNone},
    {38, "FECS_ERR_WATCHDOG_TIMEOUT", "driver firmware error: watchdog timeout", kNone},
    {39, "CE0_ERROR", "copy engine 0 exception", kRestartApp},
    {40, "CE1_ERROR", "copy engine 1 exception", kRestartApp},
    {41, "CE2_ERROR", "copy engine 2 exception", kRestartApp},
    {43, "RESETCHANNEL_VERIF_ERROR", "GPU stopped processing an application", kNone},
    {44, "GR_FAULT_DURING_CTXSW", "graphics fault during a context switch", kNone},
    {45, "PREEMPTIVE_REMOVAL", "channels of a process were cleaned up early", kDecode},
    {46, "GPU_TIMEOUT_ERROR", "GPU timed out", kResetGpu},
    {48, "GPU_ECC_DBE", "double-bit ECC error", kDecode},
    {54, "PWR_REDUCED_CLOCKING", "auxiliary power is not connected", kContactSupport},
    {60, "SEC2_ERROR", "SEC2 engine exception", kRestartApp},
    {61, "PMU_BREAKPOINT", "internal micro-controller breakpoint", kContactSupport},
    {62, "PMU_HALT_ERROR", "internal micro-controller halted", kResetGpu},
    {63, "INFOROM_DRAM_RETIREMENT_EVENT", "row remapping or page retirement recorded", kNone},
    {64, "INFOROM_DRAM_RETIREMENT_FAILURE", "row remapping or page retirement failed", kResetGpu},
    {66, "FECS_ERR_REG_ACCESS_VIOLATION", "illegal register access by the driver", kNone},
    {67, "FECS_ERR_VERIF_VIOLATION", "illegal access by the driver", kNone},
    {68, "NVDEC0_ERROR", "NVDEC0 engine exception", kRestartApp},
    {69, "GR_CLASS_ERROR", "graphics class error", kRestartApp},
    {70, "CE3_ERROR", "copy engine 3 exception", kRestartApp},
    {71, "CE4_ERROR", "copy engine 4 exception", kRestartApp},
    {72, "CE5_ERROR", "copy engine 5 exception", kRestartApp},
    {74, "NVLINK_ERROR", "NVLink error", kDecode},
    {75, "CE6_ERROR", "copy engine 6 exception", kRestartApp},
    {76, "CE7_ERROR", "copy engine 7 exception", kRestartApp},
    {77, "CE8_ERROR", "copy engine 8 exception", kRestartApp},
    {78, "VGPU_START_ERROR", "vGPU could not start", kUpdateSoftware},
    {79, "GPU_HAS_FALLEN_OFF_THE_BUS", "GPU has fallen off the bus", kRestartNode},
    {80, "PBDMA_PUSHBUFFER_CRC_MISMATCH", "corrupt data sent to the GPU", kRestartApp},
    {82, "NVJPG0_ERROR", "NVJPG0 engine exception", kRestartApp},
    {83, "NVDEC1_ERROR", "NVDEC1 engine exception", kRestartApp},
    {84, "NVDEC2_ERROR", "NVDEC2 engine exception", kRestartApp},
    {85, "CE9_ERROR", "copy engine 9 exception", kRestartApp},
    {86, "OFA0_ERROR", "OFA0 engine exception", kRestartApp},
    {88, "NVDEC3_ERROR", "NVDEC3 engine exception", kRestartApp},
    {89, "NVDEC4_ERROR", "NVDEC4 engine exception", kRestartApp},
    {92, "EXCESSIVE_SBE_INTERRUPTS", "high rate of single-bit ECC errors", kNone},
    {93, "INFOROM_ERASE_LIMIT_EXCEEDED", "InfoROM erase limit exceeded", kNone},
    {94, "CONTAINED_ERROR", "contained memory error", kRestartApp},
    {95, "UNCONTAINED_ERROR", "uncontained memory error", kResetGpu},
    {96, "NVDEC5_ERROR", "NVDEC5 engine exception", kRestartApp},
    {97, "NVDEC6_ERROR", "NVDEC6 engine exception", kRestartApp},
    {98, "NVDEC7_ERROR", "NVDEC7 engine exception", kRestartApp},
    {99, "NVJPG1_ERROR", "NVJPG1 engine exception", kRestartApp},
    {100, "NVJPG2_ERROR", "NVJPG2 engine exception", kRestartApp},
    {101, "NVJPG3_ERROR", "NVJPG3 engine exception", kRestartApp},
    {102, "NVJPG4_ERROR", "NVJPG4 engine exception", kRestartApp},
    {103, "NVJPG5_ERROR", "NVJPG5 engine exception", kRestartApp},
    {104, "NVJPG6_ERROR", "NVJPG6 engine exception", kRestartApp},
    {105, "NVJPG7_ERROR", "NVJPG7 engine exception", kRestartApp},
    {106, "SMBPBI_TEST_MESSAGE", "SMBPBI test message", kNone},
    {107, "SMBPBI_TEST_MESSAGE", "SMBPBI test message", kNone},
    {109, "CTXSW_TIMEOUT_ERROR", "context switch timed out", kResetGpu},
    {110, "SEC_FAULT_ERROR", "security fault", kResetGpu},
    {119, "GSP_RPC_TIMEOUT", "GSP did not answer a call in time", kResetGpu},
    {120, "GSP_ERROR", "GSP error", kResetGpu},
    {121, "C2C_ERROR", "corrected error on the chip-to-chip link", kNone},
    {122, "SPI_PMU_RPC_READ_FAIL", "SPI read of the PMU failed", kContactSupport},
    {123, "SPI_PMU_RPC_WRITE_FAIL", "SPI write of the PMU failed", kContactSupport},
    {124, "SPI_PMU_RPC_ERASE_FAIL", "SPI erase of the PMU failed", kContactSupport},
    {125, "INFOROM_FS_ERROR", "InfoROM file system error", kContactSupport},
    {126, "CE10_ERROR", "copy engine 10 exception", kRestartApp},
    {127, "CE11_ERROR", "copy engine 11 exception", kRestartApp},
    {128, "CE12_ERROR", "copy engine 12 exception", kRestartApp},
    {129, "CE13_ERROR", "copy engine 13 exception", kRestartApp},
    {130, "CE14_ERROR", "copy engine 14 exception", kRestartApp},
    {131, "CE15_ERROR", "copy engine 15 exception", kRestartApp},
    {132, "CE16_ERROR", "copy engine 16 exception", kRestartApp},
    {133, "CE17_ERROR", "copy engine 17 exception", kRestartApp},
    {134, "CE18_ERROR", "copy engine 18 exception", kRestartApp},
    {135, "CE19_ERROR", "copy engine 19 exception", kRestartApp},
    {136, "ALI_TRAINING_FAIL", "NVLink training failed", kResetGpu},
    {137, "NVLINK_PRIV_ERR", "illegal access over NVLink", kNone},
    {139, "OFA1_ERROR", "OFA1 engine exception", kRestartApp},
    {140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "unrecovered ECC error", kResetGpu},
    {141, "FAST_PATH_ERROR", "fast path error", kNone},
    {142, "NVENC3_ERROR", "NVENC3 engine exception", kContactSupport},
    {143, "GPU_INIT_ERROR", "GPU could not be initialised", kResetGpu},
    {144, "NVLINK_SAW_ERROR", "NVLink SAW error", kDecode},
    {145, "NVLINK_RLW_ERROR", "NVLink RLW error", kDecode},
    {146, "NVLINK_TLW_ERROR", "NVLink TLW error", kDecode},
    {147, "NVLINK_TREX_ERROR", "NVLink TREX error", kDecode},
    {148, "NVLINK_NVLPW_CTRL_ERROR", "NVLink control error", kDecode},
    {149, "NVLINK_NETIR_ERROR", "NVLink NETIR error", kDecode},
    {150, "NVLINK_MSE_ERROR", "NVLink MSE error", kDecode},
    {151, "KEY_ROTATION_ERROR", "key rotation failed", kRestartVm},
    {152, "DLA", "DLA error", kNone},
    {153, "DLA", "DLA error", kNone},
    {154, "GPU_RECOVERY_ACTION_CHANGED", "recovery action of the GPU changed", kDecode},
    {155, "NVLINK_SW_DEFINED_ERROR", "NVLink was taken down by software", kResetGpu},
    {156, "RESOURCE_RETIREMENT_EVENT", "a resource was retired", kResetGpu},
    {157, "RESOURCE_RETIREMENT_FAILURE", "a resource could not be retired: none is spare", kNone},
    {158, "GPU_FATAL_TIMEOUT", "GPU fatal timeout", kResetGpu},
    {159, "CHI_NON_DATA_ERROR", "error on the chip-to-chip interface", kDecode},
    {160, "CHANNEL_RETIREMENT_EVENT", "a memory channel was retired", kNone},
    {161, "CHANNEL_RETIREMENT_FAILURE", "a memory channel could not be retired", kNone},
    {162, "PSHC", "power smoothing event", kNone},
    {163, "PSHC", "power smoothing event", kNone},
    {164, "PSHC", "power smoothing event", kNone},
    {165, "PSHC", "power smoothing event", kNone},
    {166, "NVLINK_SECURE", "NVLink event under confidential computing", kNone},
    {167, "PCIE_FATAL_TIMEOUT", "PCIe fatal timeout", kContactSupport},
    {168, "REDUCED_GPU_MEMORY_CAPACITY", "memory capacity reduced", kContactSupport},
    {169, "SEC2_HALT_ERROR", "SEC2 micro-controller halted", kContactSupport},
    {170, "NVLINK_SECURE", "NVLink event under confidential computing", kNone},
    {171, "UNCORRECTABLE_DRAM_ERROR", "uncorrectable DRAM error", kNone},
    {172, "UNCORRECTABLE_SRAM_ERROR", "uncorrectable SRAM error", kNone},
});
static_assert(std::ranges::is_sorted(kXids, {}, &Xid::code));

}  // namespace

std::string_view name(XidAction action) {
  switch (action) {
    case kNone:
      return "none";
    case kRestartApp:
      return "restart-app";
    case kResetGpu:
      return "reset-gpu";
    case kRestartVm:
      return "restart-vm";
    case kRestartNode:
      return "restart-node";
    case kDecode:
      return "decode";
    case kUpdateSoftware:
      return "update-software";
    case kContactSupport:
      return "contact-support";
  }
  return "unknown";
}

std::span<const Xid> xids() { return kXids; }

const Xid* find_xid(std::uint64_t code) {
  const auto found = std::ranges::lower_bound(kXids, code, {}, &Xid::code);
  return found != kXids.end() && found->code == code ? &*found : nullptr;
}

std::string describe_xid(std::uint64_t code) {
  const auto* xid = find_xid(code);
  return "XID " + std::to_string(code) + ": " +
         (xid ? std::string(xid->description) : "not in NVIDIA's catalogue");
}

}  // namespace gpulet::health
