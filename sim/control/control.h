// What one does to a running simulated machine: load, faults, reset, replacement, healing. `gpulet-sim` is a
// command line over these; tests, the demo and the seeded simulation call them on the state itself.
//
// `gpu` is an index. Errors: kNotFound for a GPU, link or instance that the machine does not have;
// kInvalidArgument for a number out of range. Each call is one edit: clients see all of it or nothing, and
// waiters wake once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/state/state.h"

namespace gpulet::sim::control {

// The index of what a person calls a GPU: an index, a UUID or a PCI address.
Result<std::uint32_t> find_gpu(const StateFile& state, const std::string& name);

struct Load {
  std::uint32_t percent = 0;     // 0 ends the load
  std::uint64_t memory_mib = 0;  // of the process; 0: as much of the GPU's as `percent` says
  std::uint32_t pid = 0;         // 0: a made-up one, the same for each load of this GPU
  std::uint32_t gpu_instance = kNoInstance;
  std::uint32_t compute_instance = kNoInstance;
};
// Utilization, clocks, power and temperature follow, between idle and the limits. A load replaces the one of
// its pid.
Status load(const StateFile& state, std::uint32_t gpu, const Load& load);

// Posts the event, with the instance that it is about, and sets the recovery action that the catalogue names
// for it.
Status xid(const StateFile& state, std::uint32_t gpu, std::uint64_t code,
           std::uint32_t gpu_instance = kNoInstance, std::uint32_t compute_instance = kNoInstance);
// nvmlDeviceGpuRecoveryAction_t after that XID: 0 none, 1 reset, 2 reboot the node. Source: NVIDIA's XID
// catalogue.
std::uint32_t recovery_action_of(std::uint64_t xid);

enum class Ecc { kCorrected, kUncorrected };
// NVML_MEMORY_LOCATION_*.
enum class EccPlace { kL1Cache, kL2Cache, kDram, kRegisters, kTexture, kSharedMemory, kCbu, kSram };
// Counts errors and posts the event. On GPUs that retire pages, an uncorrected one in DRAM retires a page.
Status ecc(const StateFile& state, std::uint32_t gpu, Ecc kind, std::uint64_t count,
           EccPlace place = EccPlace::kDram);
// The driver says that there were too many in SRAM. kUnsupported on GPUs that do not say so.
Status sram_threshold(const StateFile& state, std::uint32_t gpu);
enum class Retire { kSingleBit, kDoubleBit };
// Retires pages, at the next reset. kUnsupported on GPUs that remap rows instead.
Status retire(const StateFile& state, std::uint32_t gpu, Retire cause, std::uint32_t count = 1);

// Sets the temperature; from the maximum on it slows down by software, from the slowdown threshold on by
// hardware.
Status thermal(const StateFile& state, std::uint32_t gpu, std::int32_t celsius);

enum class Remap { kCorrectable, kUncorrectable, kPending, kFailed };
// kUnsupported on GPUs that retire pages instead. Pending wants a reset when convenient, failed a reset.
Status remap(const StateFile& state, std::uint32_t gpu, Remap kind);

enum class LinkChange { kUp, kDown, kErrors };
// Of a link between two GPUs both ends change. `count`: errors added.
Status nvlink(const StateFile& state, std::uint32_t gpu, std::uint32_t link, LinkChange change,
              std::uint64_t count = 1);

// Counts replays; narrows the link to so many lanes.
Status pcie_replays(const StateFile& state, std::uint32_t gpu, std::uint32_t count);
Status pcie_width(const StateFile& state, std::uint32_t gpu, std::uint32_t lanes);
// Clocks were held down for so much longer.
enum class Violation { kThermal, kPower };
Status violation(const StateFile& state, std::uint32_t gpu, Violation kind, std::uint32_t milliseconds);
// Of its registration with the NVLink fabric. kUnsupported on a machine without one.
enum class FabricChange { kHealthy, kDegraded, kJoining, kFailed };
Status fabric(const StateFile& state, std::uint32_t gpu, FabricChange change);
// Its InfoROM is corrupted, until healed or replaced.
Status inforom(const StateFile& state, std::uint32_t gpu);

// The GPU's calls return GPU_IS_LOST. With `with_event` XID 79 comes too: on hardware it sometimes does not.
Status lost(const StateFile& state, std::uint32_t gpu, bool with_event = false);

// Without a GPU: the driver as a whole.
Status hang(const StateFile& state, std::optional<std::uint32_t> gpu);
Status slow(const StateFile& state, std::optional<std::uint32_t> gpu, std::uint32_t delay_us);
// Calls return this nvmlReturn_t: of one GPU, of nvmlInit, of event waits. 0 ends it.
Status fail_gpu(const StateFile& state, std::uint32_t gpu, std::uint32_t nvml_return);
// Of the calls that change MIG on that GPU (mode, create, destroy) the one after `skip` others returns this
// nvmlReturn_t and has no effect, or hangs until healed. The rest go on. 0 ends it.
Status fail_mig(const StateFile& state, std::uint32_t gpu, std::uint32_t nvml_return, std::uint32_t skip = 0);
Status hang_mig(const StateFile& state, std::uint32_t gpu, std::uint32_t skip = 0);
Status fail_init(const StateFile& state, std::uint32_t nvml_return);
Status fail_event_wait(const StateFile& state, std::uint32_t nvml_return);

// As `nvidia-smi -r`: of an idle GPU.
Status reset(const StateFile& state, std::uint32_t gpu);
// Another card in its slot, with another UUID.
Status replace(const StateFile& state, std::uint32_t gpu);
// No faults and no recovery action any more: of one GPU, or of all and the driver. UUIDs stay.
Status heal(const StateFile& state, std::optional<std::uint32_t> gpu);

// The driver goes, and comes back with load_driver, if wanted in another version ("" keeps it).
Status unload_driver(const StateFile& state);
Status load_driver(const StateFile& state, const std::string& version = {});

}  // namespace gpulet::sim::control
