// gpulet-sim: creates a simulated machine and changes it. Only this file uses CLI11; sim/control and sim/root
// do the work.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include "arguments/arguments.h"
#include "arguments/command_doc.h"
#include "arguments/output.h"
#include "base/text.h"
#include "sim/control/answers.h"
#include "sim/control/commands.h"
#include "sim/control/control.h"
#include "sim/demo/demo.h"
#include "sim/mps/daemon.h"
#include "sim/root/driver_root.h"
#include "sim/schedule/command.h"

namespace gpulet::sim {
namespace {

constexpr int kFailed = 1;
constexpr int kUsageError = arguments::kWrongArguments;
constexpr std::uint32_t kMaxReturnCode = 999;  // NVML_ERROR_UNKNOWN

class CommandLine {
 public:
  int parse_and_run(int argc, char** argv) {
    arguments::use_help_text(app_);
    arguments::set_help_texts(app_, "",
                              "  gpulet-sim up hgx-h100 --root /tmp/node\n"
                              "  gpulet-sim xid 3 79 --root /tmp/node\n"
                              "  gpulet-sim heal 3 --root /tmp/node");
    add_machine_commands();
    add_device_nodes();
    add_load_and_faults();
    add_conditions();
    add_failing_calls();
    add_reset_fault();
    add_cuda_fault();
    add_memory_accounting();
    add_repairs();
    add_mps();
    add_demo();
    add_schedule();
    app_.require_subcommand(1);
    arguments::refuse_malformed_numbers(app_);
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return app_.exit(error);
      return print_error(arguments::describe_parse_error(app_, error, nullptr), kUsageError);
    }
    if (exit_code_) return exit_code_();
    const Status done = action_();
    if (done) return 0;
    const bool wrong = done.error().code() == Code::kInvalidArgument;
    return print_error(done.error().full_message(), wrong ? kUsageError : kFailed);
  }

 private:
  int print_error(const std::string& what, int code) const {
    std::fprintf(stderr, "%s: %s\n", arguments::command_path(app_).c_str(),
                 arguments::printable_text(what).c_str());
    return code;
  }
  CLI::App* add_command(const std::string& name, const std::string& help, std::function<Status()> action) {
    CLI::App* sub = app_.add_subcommand(name, help);
    sub->callback([this, action = std::move(action)] { action_ = action; });
    return sub;
  }
  CLI::App* add_root_command(const std::string& name, const std::string& help,
                             std::function<Status()> action) {
    CLI::App* sub = add_command(name, help, std::move(action));
    sub->add_option("--root", arguments_.root, "directory of the driver root")
        ->required()
        ->envname("GPULET_SIM_ROOT");
    return sub;
  }
  CLI::App* add_gpu_command(const std::string& name, const std::string& help, GpuAction act) {
    CLI::App* sub =
        add_root_command(name, help, [this, act = std::move(act)] { return on_gpu(arguments_, act); });
    sub->add_option("GPU", arguments_.gpu, "index, UUID or PCI address")->required();
    return sub;
  }
  CLI::App* add_optional_gpu_command(const std::string& name, const std::string& help,
                                     OptionalGpuAction act) {
    CLI::App* sub = add_root_command(
        name, help, [this, act = std::move(act)] { return on_gpu_or_driver(arguments_, act); });
    sub->add_option("GPU", arguments_.gpu, "index, UUID or PCI address, or `all`");
    return sub;
  }
  void add_instance(CLI::App* sub) {
    sub->add_option("--gi", arguments_.gpu_instance, "GPU instance id, with MIG");
    sub->add_option("--ci", arguments_.compute_instance, "compute instance id, with --gi");
  }

  void add_force(CLI::App* sub) {
    sub->add_flag("--force", arguments_.force, "also while a process holds it, which hardware refuses");
  }

  void add_machine_commands() {
    CLI::App* sub = add_command("machines", "List the built-in machines, or print one as YAML",
                                [this] { return list_machines(arguments_); });
    sub->add_option("MACHINE", arguments_.machine, "print this one");
    sub = add_root_command("up", "Create a driver root and start the machine",
                           [this] { return bring_up(arguments_); });
    sub->add_option("MACHINE", arguments_.machine, "a built-in machine or a YAML file")->required();
    sub->add_option("--seed", arguments_.seed, "seed of the GPU UUIDs; set one per node to keep them unique");
    sub->add_option("--library", arguments_.library,
                    "libnvidia-ml.so.1 to install (default: the simulated one)");
    sub->add_option("--nvidia-smi", arguments_.nvidia_smi,
                    "nvidia-smi to install (default: the simulated one)");
    sub->add_option("--mps-control", arguments_.mps_control,
                    "nvidia-cuda-mps-control to install (default: the simulated one)");
    sub->add_flag("--no-device-nodes", arguments_.no_device_nodes, "create no device nodes (needs no root)");
    sub->add_flag("--without-uvm", arguments_.without_uvm,
                  "start without the module nvidia-uvm; see `gpulet-sim uvm`");
    add_root_command("down", "Stop the machine and remove everything that `up` created",
                     [this] { return remove_driver_root(arguments_.root); });
    sub = add_root_command("status", "Show processes and faults", [this] { return show_status(arguments_); });
    arguments::add_output_options(*sub, arguments_.output);
  }

  void add_device_nodes() {
    CLI::App* sub = add_root_command("device-node", "Remove a device node, or make it again", [this] {
      return arguments_.kind == "add" ? add_device_node(arguments_.root, arguments_.location)
                                      : remove_device_node(arguments_.root, arguments_.location);
    });
    sub->add_option("CHANGE", arguments_.kind, "add or remove")
        ->required()
        ->check(CLI::IsMember({"add", "remove"}));
    sub->add_option("NAME", arguments_.location, "name below /dev, such as nvidia0 or nvidia-uvm")
        ->required();
    sub = add_root_command("uvm", "Load or unload the module nvidia-uvm", [this] {
      return arguments_.kind == "load" ? load_uvm(arguments_.root, !arguments_.without_nodes)
                                       : unload_uvm(arguments_.root);
    });
    sub->add_option("CHANGE", arguments_.kind, "load or unload")
        ->required()
        ->check(CLI::IsMember({"load", "unload"}));
    sub->add_flag("--without-nodes", arguments_.without_nodes,
                  "load it as modprobe does, which makes no device nodes");
  }

  void add_load_and_faults() {
    const Arguments& a = arguments_;
    using control::Allocation;
    static const std::map<std::string, Allocation> kAllocations = {{"", Allocation::kOrdinary},
                                                                   {"tiny", Allocation::kTinyObjects},
                                                                   {"dead-creator", Allocation::kDeadCreator},
                                                                   {"managed", Allocation::kManaged},
                                                                   {"render-node", Allocation::kRenderNode}};
    CLI::App* sub = add_gpu_command(
        "load", "Run a simulated process on a GPU", [&a](const StateFile& state, std::uint32_t gpu) {
          return control::set_load(state, gpu,
                                   {a.percent, a.memory_mib, a.pid, a.gpu_instance, a.compute_instance,
                                    a.cgroup, kAllocations.at(a.allocation)});
        });
    sub->add_option("PERCENT", arguments_.percent, "utilization, 0 to 100; 0 ends the process")->required();
    sub->add_option("--memory", arguments_.memory_mib, "memory of the process in MiB");
    sub->add_option("--pid", arguments_.pid, "process id");
    sub->add_option("--cgroup", arguments_.cgroup,
                    "directory of the cgroup that its memory is charged to (default: that of --pid)");
    sub->add_option(
           "--past-limit", arguments_.allocation,
           "allocate memory that the driver does not charge: tiny (charges a sixteenth), dead-creator, "
           "managed or render-node")
        ->check(CLI::IsMember({"tiny", "dead-creator", "managed", "render-node"}));
    add_instance(sub);

    sub = add_gpu_command("xid", "Post an XID event", [&a](const StateFile& state, std::uint32_t gpu) {
      return control::post_xid(state, gpu, a.xid, a.gpu_instance, a.compute_instance);
    });
    sub->add_option("CODE", arguments_.xid, "XID, as in NVIDIA's catalogue")->required();
    add_instance(sub);

    sub = add_gpu_command("thermal", "Set the temperature", [&a](const StateFile& state, std::uint32_t gpu) {
      return control::set_temperature(state, gpu, a.celsius);
    });
    sub->add_option("CELSIUS", arguments_.celsius, "0 to 200")->required();

    static const std::map<std::string, control::Remap> kRemaps = {
        {"correctable", control::Remap::kCorrectable},
        {"uncorrectable", control::Remap::kUncorrectable},
        {"pending", control::Remap::kPending},
        {"failed", control::Remap::kFailed}};
    sub = add_gpu_command("remap", "Remap a memory row", [&a](const StateFile& state, std::uint32_t gpu) {
      return control::remap_row(state, gpu, kRemaps.at(a.kind.empty() ? "pending" : a.kind));
    });
    sub->add_option("KIND", arguments_.kind,
                    "correctable, uncorrectable, pending or failed (default pending)")
        ->check(CLI::IsMember(kRemaps));

    static const std::map<std::string, control::LinkChange> kChanges = {
        {"up", control::LinkChange::kUp},
        {"down", control::LinkChange::kDown},
        {"errors", control::LinkChange::kErrors}};
    sub = add_gpu_command("nvlink", "Take an NVLink down or up, or add errors to it",
                          [&a](const StateFile& state, std::uint32_t gpu) {
                            return control::change_nvlink(state, gpu, a.link, kChanges.at(a.kind), a.count);
                          });
    sub->add_option("LINK", arguments_.link, "link number")->required();
    sub->add_option("CHANGE", arguments_.kind, "up, down or errors")
        ->required()
        ->check(CLI::IsMember(kChanges));
    sub->add_option("COUNT", arguments_.count, "number of errors to add (default 1)");

    sub = add_gpu_command(
        "lost", "Make calls on a GPU return GPU_IS_LOST",
        [&a](const StateFile& state, std::uint32_t gpu) { return control::lose_gpu(state, gpu, a.event); });
    sub->add_flag("--event", arguments_.event, "also post XID 79");
  }

  // Adds a command with the argument KIND, one of `kinds`.
  template <class Kind>
  CLI::App* add_kind_command(const std::string& name, const std::string& help,
                             const std::map<std::string, Kind>& kinds,
                             std::function<Status(const StateFile&, std::uint32_t, Kind)> act) {
    CLI::App* sub =
        add_gpu_command(name, help, [this, &kinds, act](const StateFile& state, std::uint32_t gpu) {
          return act(state, gpu, kinds.at(arguments_.kind));
        });
    sub->add_option("KIND", arguments_.kind)->required()->check(CLI::IsMember(kinds));
    return sub;
  }

  void add_conditions() {
    const Arguments& a = arguments_;
    using control::EccLocation;
    static const std::map<std::string, EccLocation> kPlaces = {
        {"dram", EccLocation::kDram},        {"l1-cache", EccLocation::kL1Cache},
        {"l2-cache", EccLocation::kL2Cache}, {"registers", EccLocation::kRegisters},
        {"texture", EccLocation::kTexture},  {"shared-memory", EccLocation::kSharedMemory},
        {"cbu", EccLocation::kCbu},          {"sram", EccLocation::kSram}};
    static const std::map<std::string, int> kEcc = {{"corrected", 0}, {"uncorrected", 1}, {"threshold", 2}};
    CLI::App* sub = add_kind_command<int>(
        "ecc", "Add memory errors, or exceed the threshold of SRAM errors", kEcc,
        [&a](const StateFile& state, std::uint32_t gpu, int kind) {
          if (kind == 2) return control::exceed_sram_threshold(state, gpu);
          const auto place = a.location.empty() ? EccLocation::kDram : kPlaces.at(a.location);
          return control::count_ecc_errors(
              state, gpu, kind == 0 ? control::Ecc::kCorrected : control::Ecc::kUncorrected, a.count, place);
        });
    sub->add_option("COUNT", arguments_.count, "number of errors to add (default 1)");
    sub->add_option("--place", arguments_.location, "location of the errors (default dram)")
        ->check(CLI::IsMember(kPlaces));

    static const std::map<std::string, control::Retire> kCauses = {
        {"single-bit", control::Retire::kSingleBit}, {"double-bit", control::Retire::kDoubleBit}};
    sub = add_kind_command<control::Retire>(
        "retire", "Retire memory pages", kCauses,
        [&a](const StateFile& state, std::uint32_t gpu, control::Retire cause) {
          return control::retire_pages(state, gpu, cause, a.number);
        });
    sub->add_option("COUNT", arguments_.number, "number of pages to retire (default 1)");

    static const std::map<std::string, bool> kPcie = {{"replays", false}, {"width", true}};
    sub = add_kind_command<bool>("pcie", "Add PCIe replays, or reduce the link width", kPcie,
                                 [&a](const StateFile& state, std::uint32_t gpu, bool width) {
                                   return width ? control::set_pcie_width(state, gpu, a.number)
                                                : control::add_pcie_replays(state, gpu, a.number);
                                 });
    sub->add_option("NUMBER", arguments_.number, "number of replays to add, or of lanes to keep")->required();

    static const std::map<std::string, control::Violation> kViolations = {
        {"thermal", control::Violation::kThermal}, {"power", control::Violation::kPower}};
    sub = add_kind_command<control::Violation>(
        "violation", "Add time throttled by temperature or power", kViolations,
        [&a](const StateFile& state, std::uint32_t gpu, control::Violation kind) {
          return control::add_violation(state, gpu, kind, a.number);
        });
    sub->add_option("MILLISECONDS", arguments_.number, "time to add")->required();

    static const std::map<std::string, control::FabricChange> kFabric = {
        {"healthy", control::FabricChange::kHealthy},
        {"degraded", control::FabricChange::kDegraded},
        {"joining", control::FabricChange::kJoining},
        {"failed", control::FabricChange::kFailed}};
    add_kind_command<control::FabricChange>("fabric", "Set the registration with the NVLink fabric", kFabric,
                                            control::change_fabric);
    add_gpu_command("inforom", "Corrupt the InfoROM", control::corrupt_inforom);
  }

  void add_failing_calls() {
    const Arguments& a = arguments_;
    add_optional_gpu_command("hang", "Block calls on a GPU, or on all, until healed", control::hang_calls);
    CLI::App* sub = add_optional_gpu_command("slow", "Delay calls on a GPU, or on all",
                                             [&a](const StateFile& state, std::optional<std::uint32_t> gpu) {
                                               return control::slow_calls(state, gpu, a.delay_us);
                                             });
    sub->get_option("GPU")->required();
    sub->add_option("MICROSECONDS", arguments_.delay_us, "delay of each call; 0 ends it")->required();
    sub = add_root_command("fail", "Make calls on a GPU, nvmlInit or event waits return an error",
                           [this] { return fail_calls(); });
    sub->add_option("WHAT", arguments_.gpu, "a GPU, `init` or `events`")->required();
    sub->add_option("CODE", arguments_.code, "nvmlReturn_t; 0 ends it")->required();
    sub = add_root_command("answer", "Make one NVML function return an error", [&a] {
      return on_gpu_or_driver(a, [&a](const StateFile& state, std::optional<std::uint32_t> gpu) {
        return control::set_answer(state, a.call, gpu, a.code);
      });
    });
    sub->add_option(
           "CALL", arguments_.call,
           "its exported name, such as nvmlDeviceGetMemoryInfo_v2; `*`: all but those that find GPUs")
        ->required();
    sub->add_option("CODE", arguments_.code, "nvmlReturn_t; 0 ends it")->required();
    sub->add_option("GPU", arguments_.gpu, "index, UUID or PCI address, or `all` (default all)");
    sub =
        add_gpu_command("mig-fault", "Make a MIG change fail or hang",
                        [&a](const StateFile& state, std::uint32_t gpu) { return fail_mig(a, state, gpu); });
    sub->add_option("CODE", arguments_.kind,
                    "nvmlReturn_t (19 in use, 23 insufficient resources; 0 ends it) or `hang`")
        ->required();
    sub->add_option("--after", arguments_.skip, "fail the call after N successful ones");
  }

  void add_reset_fault() {
    const Arguments& a = arguments_;
    CLI::App* sub = add_gpu_command(
        "reset-fault", "Make resets of a GPU by nvidia-smi fail, hang or take time",
        [&a](const StateFile& state, std::uint32_t gpu) -> Status {
          if (a.kind == "hang")
            return control::set_reset_fault(state, gpu, {.hangs = true, .milliseconds = a.delay_ms});
          const auto code = text::parse_unsigned(a.kind);
          if (!code || *code > kMaxReturnCode)
            return fail(Code::kInvalidArgument, "expected an nvmlReturn_t or `hang`", a.kind);
          return control::set_reset_fault(
              state, gpu, {.nvml_return = static_cast<std::uint32_t>(*code), .milliseconds = a.delay_ms});
        });
    sub->add_option("CODE", arguments_.kind, "nvmlReturn_t (19 in use, 999 unknown; 0 ends it) or `hang`")
        ->required();
    sub->add_option("--takes-ms", arguments_.delay_ms, "how long each reset takes");
  }

  void add_cuda_fault() {
    const Arguments& a = arguments_;
    using control::CudaFault;
    static const std::map<std::string, CudaFault> kFaults = {{"memory", CudaFault::kBadMemory},
                                                             {"result", CudaFault::kWrongResult},
                                                             {"slow", CudaFault::kSlowCopies},
                                                             {"error", CudaFault::kLaunchError},
                                                             {"hang", CudaFault::kHang}};
    CLI::App* sub = add_kind_command<CudaFault>(
        "cuda-fault",
        "Make CUDA programs on a GPU find bad memory, wrong results, slow copies, errors, or hang", kFaults,
        [&a](const StateFile& state, std::uint32_t gpu, CudaFault fault) {
          return control::set_cuda_fault(state, gpu, fault, a.number);
        });
    sub->add_option("NUMBER", arguments_.number, "percentage of slow copies, or the CUresult of launches");
  }

  static Status fail_mig(const Arguments& arguments, const StateFile& state, std::uint32_t gpu) {
    if (arguments.kind == "hang") return control::hang_mig(state, gpu, arguments.skip);
    const auto code = text::parse_unsigned(arguments.kind);
    if (!code || *code > kMaxReturnCode)
      return fail(Code::kInvalidArgument, "expected an nvmlReturn_t or `hang`", arguments.kind);
    return control::fail_mig(state, gpu, static_cast<std::uint32_t>(*code), arguments.skip);
  }

  Status fail_calls() {
    const Arguments& a = arguments_;
    if (a.gpu == "init")
      return on_machine(a, [&a](const StateFile& state) { return control::fail_init(state, a.code); });
    if (a.gpu == "events")
      return on_machine(a, [&a](const StateFile& state) { return control::fail_event_wait(state, a.code); });
    return on_gpu(
        a, [&a](const StateFile& state, std::uint32_t gpu) { return control::fail_gpu(state, gpu, a.code); });
  }

  void add_memory_accounting() {
    const Arguments& a = arguments_;
    static const std::map<std::string, MemoryBackend> kModes = {{"auto", MemoryBackend::kAuto},
                                                                {"off", MemoryBackend::kOff},
                                                                {"misc", MemoryBackend::kMisc},
                                                                {"dmem", MemoryBackend::kDmem}};
    CLI::App* sub = add_root_command(
        "memacct", "Set how the driver, from 615 on, accounts memory by cgroup; a change ends all limits",
        [&a] {
          return on_machine(a, [&a](const StateFile& state) {
            return control::set_memory_accounting(state, kModes.at(a.kind), a.memory_mib);
          });
        });
    sub->add_option("MODE", arguments_.kind, "auto, off, misc or dmem")
        ->required()
        ->check(CLI::IsMember(kModes));
    sub->add_option("--misreport", arguments_.memory_mib, "read every limit back as this many MiB");
  }

  void add_repairs() {
    const Arguments& a = arguments_;
    add_force(add_gpu_command("reset", "Reset an idle GPU", [&a](const StateFile& state, std::uint32_t gpu) {
      return control::reset_gpu(state, gpu, a.clients());
    }));
    add_gpu_command("replace", "Replace the card by another with a new UUID", control::replace_gpu);
    add_optional_gpu_command("heal", "End all faults of a GPU, or of all GPUs and the driver",
                             control::heal_faults);
    CLI::App* sub = add_root_command("driver-reload", "Unload the driver and load it again",
                                     [this] { return reload_driver(arguments_); });
    add_force(sub);
    sub->add_option("--version", arguments_.version, "driver version to load");
    sub->add_option("--down-ms", arguments_.down_ms, "time without a driver, in milliseconds")
        ->check(CLI::Range(0U, 600'000U));
    add_force(add_root_command("driver-unload", "Unload the driver", [&a] {
      return on_machine(a,
                        [&a](const StateFile& state) { return control::unload_driver(state, a.clients()); });
    }));
    sub = add_root_command("driver-load", "Load an unloaded driver", [&a] {
      return on_machine(a, [&a](const StateFile& state) { return control::load_driver(state, a.version); });
    });
    sub->add_option("--version", arguments_.version, "driver version to load");
  }

  void add_mps() {
    CLI::App* group =
        app_.add_subcommand("mps", "Control an MPS control daemon, selected by its pipe directory");
    group->require_subcommand(1);
    const auto add = [this, group](const std::string& name, const std::string& help,
                                   std::function<Status()> act) {
      CLI::App* sub = group->add_subcommand(name, help);
      sub->add_option("PIPE_DIR", arguments_.pipe_directory, "CUDA_MPS_PIPE_DIRECTORY of the daemon")
          ->required()
          ->envname("CUDA_MPS_PIPE_DIRECTORY");
      sub->callback([this, act = std::move(act)] { action_ = act; });
      return sub;
    };
    add("die", "Crash the daemon", [this] { return mps::crash_daemon(arguments_.pipe_directory); });
    add("hang", "Accept connections without responding, until healed",
        [this] { return mps::hang_daemon(arguments_.pipe_directory); });
    add("slow", "Delay responses",
        [this] { return mps::delay_daemon(arguments_.pipe_directory, arguments_.delay_ms); })
        ->add_option("MILLISECONDS", arguments_.delay_ms, "delay of each response; 0 ends it")
        ->required();
    add("heal", "End hang and slow", [this] { return mps::restore_daemon(arguments_.pipe_directory); });
    add("client", "Act as a CUDA client: print its limits and wait for a signal",
        [this] { return run_mps_client(arguments_.pipe_directory); });
  }

  // run_demo() prints its own error, so its exit code is used as it is.
  void add_demo() {
    CLI::App* sub = app_.add_subcommand(
        "demo", "Show gpulet on a simulated node: discovery, Pods, a failing GPU and its return");
    arguments::set_help_texts(*sub, "", "  gpulet-sim demo --machine dgx-a100");
    sub->add_option("--machine", demo_machine_, "built-in machine or YAML file (default hgx-h100)");
    sub->add_flag("--details", demo_details_, "also print what the commands of each step print");
    sub->callback([this] { exit_code_ = [this] { return run_demo(demo_machine_, demo_details_); }; });
  }

  void add_schedule() {
    CLI::App* sub =
        add_command("schedule", "Simulate scheduling policies on a cluster's tasks and plot the allocation",
                    [this] { return run_schedule(schedule_); });
    arguments::set_help_texts(
        *sub, "",
        "  gpulet-sim schedule --nodes nodes.csv --pods pods.csv --plot allocation.svg\n"
        "  gpulet-sim schedule --load --machines 16 --policy spread,load");
    ScheduleOptions& o = schedule_;
    sub->add_option("--nodes", o.nodes,
                    "nodes of the cluster, a CSV file with cpu_milli, memory_mib, gpu, model");
    sub->add_option(
        "--pods", o.pods,
        "tasks to place, a CSV file with cpu_milli, memory_mib, num_gpu, gpu_milli and optionally gpu_spec");
    sub->add_option(
           "--policy", o.policies,
           "policies, separated by commas, or all (default: default; with --load spread,load,default)")
        ->delimiter(',');
    CLI::Option* seed = sub->add_option("--seed", o.seed, "seed of a single run (default 1)");
    sub->add_option("--seeds", o.seeds, "runs of each policy, with seeds from 1 on (default 1)")
        ->excludes(seed);
    sub->add_option("--target", o.target,
                    "stop when requested GPUs reach this multiple of cluster capacity (default 1.3)");
    sub->add_option("--plot", o.plot, "write allocation against demand to this SVG file");
    CLI::Option* load = sub->add_flag(
        "--load", o.load, "simulate weeks of services with daily load on shared GPUs instead of a trace");
    sub->add_option("--machines", o.machines, "nodes of 8 GPUs (default 64)")->needs(load);
    sub->add_option("--days", o.days, "simulated days (default 28)")->needs(load);
    sub->add_flag("--known-services", o.known_services, "predict a service's load from its earlier runs")
        ->needs(load);
    sub->add_flag("--rebalance", o.rebalance, "run each policy also with Pods moved off hot GPUs")
        ->needs(load);
    arguments::add_output_options(*sub, o.output);
  }

  CLI::App app_{"Create a simulated NVIDIA driver, and change its state", "gpulet-sim"};
  Arguments arguments_;
  std::string demo_machine_ = "hgx-h100";
  bool demo_details_ = false;
  ScheduleOptions schedule_;
  std::function<Status()> action_;
  std::function<int()> exit_code_;  // of a command that prints its own error
};

}  // namespace
}  // namespace gpulet::sim

int main(int argc, char** argv) { return gpulet::sim::CommandLine().parse_and_run(argc, argv); }
