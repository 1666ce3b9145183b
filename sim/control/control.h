// Actions on a running simulated machine: load, faults, reset, replacement, healing. `gpulet-sim` is their
// command line; tests, the demo and the seeded simulation call them on the state itself.
//
// `gpu` is an index. Errors: kNotFound for a GPU, link or instance that the machine does not have;
// kInvalidArgument for a number out of range. Each call is one atomic edit and wakes
// waiters once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/control/memory_accounting.h"
#include "sim/state/state.h"

namespace gpulet::sim::control {

// `name`: an index, a UUID or a PCI address. Returns the index.
Result<std::uint32_t> find_gpu(const StateFile& state, const std::string& name);

struct Load {
  std::uint32_t percent = 0;     // 0 ends the load
  std::uint64_t memory_mib = 0;  // of the process; 0: `percent` of the GPU's
  std::uint32_t pid = 0;         // 0: a generated one, the same for each load of this GPU
  std::uint32_t gpu_instance = kNoInstance;
  std::uint32_t compute_instance = kNoInstance;
  std::string cgroup{};  // as of find_load_cgroup()
  Allocation allocation = Allocation::kOrdinary;
};
// Sets utilization, clocks, power and temperature between idle and the limits. Replaces the load of the same
// pid. kInvalidArgument where the GPU or a memory limit of the cgroup has not that much memory left;
// kNotFound if `cgroup` is no cgroup v2.
Status set_load(const StateFile& state, std::uint32_t gpu, const Load& load);

// Posts the event, with its instance, and sets the recovery action of the catalogue.
Status post_xid(const StateFile& state, std::uint32_t gpu, std::uint64_t code,
                std::uint32_t gpu_instance = kNoInstance, std::uint32_t compute_instance = kNoInstance);
// nvmlDeviceGpuRecoveryAction_t after that XID: 0 none, 1 reset, 2 reboot the node. Source: NVIDIA's XID
// catalogue.
std::uint32_t recovery_action_of(std::uint64_t xid);

enum class Ecc { kCorrected, kUncorrected };
// NVML_MEMORY_LOCATION_*.
enum class EccLocation { kL1Cache, kL2Cache, kDram, kRegisters, kTexture, kSharedMemory, kCbu, kSram };
// Counts errors and posts the event. On GPUs that retire pages, an uncorrected one in DRAM retires a page.
Status count_ecc_errors(const StateFile& state, std::uint32_t gpu, Ecc kind, std::uint64_t count,
                        EccLocation place = EccLocation::kDram);
// Sets the SRAM error threshold flag. kUnsupported on GPUs without it.
Status exceed_sram_threshold(const StateFile& state, std::uint32_t gpu);
enum class Retire { kSingleBit, kDoubleBit };
// Retires pages, at the next reset. kUnsupported on GPUs that remap rows instead.
Status retire_pages(const StateFile& state, std::uint32_t gpu, Retire cause, std::uint32_t count = 1);

// Sets the temperature. Software slows the GPU down from the maximum on, hardware from the slowdown threshold
// on.
Status set_temperature(const StateFile& state, std::uint32_t gpu, std::int32_t celsius);

enum class Remap { kCorrectable, kUncorrectable, kPending, kFailed };
// kUnsupported on GPUs that retire pages instead. kPending recommends a reset, kFailed requires one.
Status remap_row(const StateFile& state, std::uint32_t gpu, Remap kind);

enum class LinkChange { kUp, kDown, kErrors };
// Changes both ends of a link between two GPUs. `count`: errors to add.
Status change_nvlink(const StateFile& state, std::uint32_t gpu, std::uint32_t link, LinkChange change,
                     std::uint64_t count = 1);

// Adds replays; narrows the link to `lanes`.
Status add_pcie_replays(const StateFile& state, std::uint32_t gpu, std::uint32_t count);
Status set_pcie_width(const StateFile& state, std::uint32_t gpu, std::uint32_t lanes);
// Adds time during which clocks were throttled.
enum class Violation { kThermal, kPower };
Status add_violation(const StateFile& state, std::uint32_t gpu, Violation kind, std::uint32_t milliseconds);
// Sets the state of its registration with the NVLink fabric. kUnsupported on a machine without one.
enum class FabricChange { kHealthy, kDegraded, kJoining, kFailed };
Status change_fabric(const StateFile& state, std::uint32_t gpu, FabricChange change);
// Corrupts the InfoROM until the GPU is healed or replaced.
Status corrupt_inforom(const StateFile& state, std::uint32_t gpu);

// Calls on the GPU return GPU_IS_LOST. `with_event` also posts XID 79, which hardware sometimes omits.
Status lose_gpu(const StateFile& state, std::uint32_t gpu, bool with_event = false);

// Without a GPU: all calls of the driver.
Status hang_calls(const StateFile& state, std::optional<std::uint32_t> gpu);
Status slow_calls(const StateFile& state, std::optional<std::uint32_t> gpu, std::uint32_t delay_us);
// Calls on one GPU, nvmlInit, or event waits return this nvmlReturn_t. 0 ends that.
Status fail_gpu(const StateFile& state, std::uint32_t gpu, std::uint32_t nvml_return);
// Of the calls that change MIG on that GPU (mode, create, destroy) the one after `skip` others returns this
// nvmlReturn_t without an effect, or hangs until healed. Other calls succeed. 0 ends that.
Status fail_mig(const StateFile& state, std::uint32_t gpu, std::uint32_t nvml_return, std::uint32_t skip = 0);
Status hang_mig(const StateFile& state, std::uint32_t gpu, std::uint32_t skip = 0);
Status fail_init(const StateFile& state, std::uint32_t nvml_return);
Status fail_event_wait(const StateFile& state, std::uint32_t nvml_return);

// Whether clients of the driver (sim/state/clients.h) prevent an action, as on hardware, or it surprises
// them.
enum class Clients { kRefuse, kIgnore };
// As `nvidia-smi -r`: requires an idle GPU. kFailedPrecondition "in use by: …" for processes with a load, and
// with kRefuse for clients.
Status reset_gpu(const StateFile& state, std::uint32_t gpu, Clients clients = Clients::kIgnore);
// Puts another card, with another UUID, into its slot.
Status replace_gpu(const StateFile& state, std::uint32_t gpu);
// Clears faults and recovery actions of one GPU, or of all and the driver. UUIDs stay.
Status heal_faults(const StateFile& state, std::optional<std::uint32_t> gpu);

// Unloads the driver; load_driver loads it again, as `version` ("" keeps it). With kRefuse it returns
// kFailedPrecondition "in use by: …" for clients and for processes with a load.
Status unload_driver(const StateFile& state, Clients clients = Clients::kIgnore);
Status load_driver(const StateFile& state, const std::string& version = {});

// nvmlDeviceGpuRecoveryAction_t.
inline constexpr std::uint32_t kNone = 0;
inline constexpr std::uint32_t kResetGpu = 1;
inline constexpr std::uint32_t kRebootNode = 2;
inline constexpr std::uint32_t kDrainAndReset = 4;

// Runs `change(machine, gpu)` under the lock. kNotFound for a missing GPU.
template <class Change>
Status edit_gpu(const StateFile& state, std::uint32_t gpu, Change change) {
  const EditGuard machine = state.lock_for_edit();
  if (gpu >= machine->gpu_count) {
    return fail(Code::kNotFound,
                "no GPU " + std::to_string(gpu) + ": 0 to " + std::to_string(machine->gpu_count - 1));
  }
  return change(*machine, machine->gpus[gpu]);
}

// Keeps the more severe action. Posts the event.
void raise_recovery_action(Machine& machine, std::uint32_t gpu, std::uint32_t action);

// The status of a running machine as text and as JSON, in control_status.cpp.

// One line for the driver, the headings, one line for each GPU with its faults. Without `headers` only those
// of the GPUs.
std::string status_table(const Machine& machine, bool headers = true);
// With more fields than the table.
std::string status_json(const Machine& machine);

}  // namespace gpulet::sim::control
