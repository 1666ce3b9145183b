#include "agent/resources/cdi_controller.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "agent/fraction/limit_socket.h"
#include "agent/resources/device_nodes.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "cdi/generate.h"
#include "cdi/spec_files.h"

namespace gpulet::agent {
namespace {

// Packages install many files one after the other: wait for the last one.
constexpr Duration kDriverFilesSettle = std::chrono::milliseconds(100);
// How often a full disk, or a driver that is not fully installed, is retried.
constexpr Duration kSpecWriteRetry = std::chrono::seconds(5);

}  // namespace

std::string spec_inputs_key(const inventory::Snapshot& snapshot, const config::Config& config) {
  std::string key = snapshot.driver.version + '\n' + std::to_string(snapshot.driver.cuda_version);
  for (const auto& gpu : snapshot.gpus) {
    key += '\n' + gpu.uuid.str() + ' ' + std::to_string(gpu.index) + ' ' + std::to_string(gpu.minor) + ' ' +
           gpu.pci.sysfs_text() + (gpu.mig_enabled ? " mig" : "") + (gpu.unreadable ? " unreadable" : "");
    for (const auto& mig : gpu.mig_devices) {
      key += ' ' + mig.uuid.str() + ' ' + std::to_string(mig.index) + ' ' + std::to_string(mig.gpu_instance) +
             ':' + std::to_string(mig.compute_instance);
    }
  }
  const auto& flags = config.flags;
  for (const auto* text :
       {&flags.nvidia_driver_root, &flags.nvidia_dev_root, &flags.container_driver_root,
        &flags.nvidia_cdi_hook_path, &config.gpulet.cdi.spec_dir, &config.gpulet.cdi.hook_dir}) {
    key += '\n' + *text;
  }
  for (const auto* list : {&flags.cdi_feature_flags, &flags.cdi_disable_hooks}) {
    key += '\n';
    for (const auto& item : *list) key += item + ',';
  }
  key += '\n';
  for (const bool enabled : {flags.gds_enabled, flags.mofed_enabled, flags.gdrcopy_enabled})
    key += enabled ? '1' : '0';
  key += flags.device_id_strategy == config::DeviceIdStrategy::kUuid ? 'u' : 'i';
  for (const unsigned channel : config.imex.channel_ids) key += ' ' + std::to_string(channel);
  const auto& fraction = config.gpulet.fraction;
  if (fraction.driver_limits) key += '\n' + limit_socket_path(fraction);
  return key;
}

bool uses_cdi(const config::Config& config) {
  return std::ranges::any_of(config.flags.device_list_strategy, [](auto strategy) {
    return strategy == config::DeviceListStrategy::kCdiAnnotations ||
           strategy == config::DeviceListStrategy::kCdiCri;
  });
}

CdiController::CdiController(Loop& loop, Reporter& reporter, std::function<void()> changed, Writer writer)
    : loop_(loop),
      reporter_(reporter),
      changed_(std::move(changed)),
      writer_(std::move(writer)),
      relay_(std::make_shared<LoopRelay>(loop)) {}

CdiController::~CdiController() { relay_->close_relay(); }

std::optional<std::set<std::string>> CdiController::update_specs(const inventory::Snapshot& snapshot,
                                                                 const config::Config& config) {
  if (!uses_cdi(config)) {
    reported_error_.clear();
    compute_problem_.clear();
    return std::nullopt;
  }
  std::string key = spec_inputs_key(snapshot, config);
  if (key != requested_key_) {
    // The names on disk refer to another driver's files.
    if (snapshot_ && snapshot_->driver.version != snapshot.driver.version) names_.clear();
    requested_key_ = std::move(key);
    snapshot_ = std::make_shared<const inventory::Snapshot>(snapshot);
    config_ = std::make_shared<const config::Config>(config);
    start_writing();
  }
  return names_;
}

bool CdiController::rewrite_specs(const config::Config& config) {
  if (!uses_cdi(config) || !snapshot_) return false;
  notify_after_write_ = true;
  start_writing();
  return true;
}

void CdiController::start_writing() {
  write_timer_.reset();
  if (writing_) {
    write_again_ = true;
    return;
  }
  const auto root = find_device_root(*config_);
  begun_problem_ = root ? find_compute_problem(*root) : "";
  const auto work = [this, alive = lifetime_.watch(), relay = relay_, writer = writer_, snapshot = snapshot_,
                     config = config_] {
    relay->post_to_loop([this, alive, result = writer(*snapshot, *config)] {
      if (alive) on_written(result);
    });
  };
  const auto started = start_detached_thread("CDI specs", work);
  writing_ = started.has_value();
  if (!started) on_written({names_, directories_, {}, started.error()});
}

void CdiController::on_written(CdiWriteResult result) {
  writing_ = false;
  for (const auto& warning : result.warnings) log::debug(warning);
  const std::string error = result.error ? result.error->full_message() : "";
  const bool error_differs = error != reported_error_;
  if (error_differs) {
    reported_error_ = error;
    if (result.error) reporter_.report_event(Reporter::Severity::kWarning, "CdiSpecFailed", error);
  }
  bool notify = !result.error && begun_problem_ != compute_problem_;
  if (notify) compute_problem_ = begun_problem_;
  if (std::exchange(write_again_, false)) {
    start_writing();
  } else {
    notify |= std::exchange(notify_after_write_, false);
    if (result.error) write_timer_ = loop_.after(kSpecWriteRetry, [this] { start_writing(); });
  }
  watch_directories(result.directories);
  if (result.names == names_ && !notify && !error_differs) return;
  names_ = std::move(result.names);
  changed_();
}

// A driver's files may change while the loaded module stays the same.
void CdiController::watch_directories(const std::vector<std::string>& directories) {
  if (directories == directories_) return;
  directories_ = directories;
  watches_.clear();
  for (const auto& directory : directories_) {
    auto watch = watch_events(
        loop_, directory, IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_CLOSE_WRITE | IN_ONLYDIR,
        [this](const std::string&, std::uint32_t) {
          if (!write_timer_) write_timer_ = loop_.after(kDriverFilesSettle, [this] { start_writing(); });
        });
    if (watch) {
      watches_.push_back(std::move(*watch));
    } else if (watch.error().code() == Code::kIo) {
      log::warning("cannot watch the driver's files", watch.error());
    }
  }
}

// make_cdi_writer(): the roots, the hook and the spec directory of a config, and the result.
namespace {

constexpr std::string_view kHook = "gpulet-hook";
constexpr std::size_t kMaxHookBytes = 64u << 20;  // a release has 1.2 MB, a sanitized build 30

bool path_exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

cdi::RootPaths root_paths(const config::Flags& flags) {
  cdi::RootPaths paths;
  paths.driver = flags.container_driver_root;
  for (const auto& other : {flags.nvidia_driver_root, std::string("/")}) {
    if (!path_exists(paths.driver)) paths.driver = other;
  }
  paths.driver_on_host = flags.nvidia_driver_root;
  paths.dev_on_host = flags.nvidia_dev_root;
  // A driver root may bring its own trees, as a driver container's and the simulator's do.
  if (path_exists(paths.driver + "/proc/driver/nvidia")) paths.proc = paths.driver + "/proc";
  if (path_exists(paths.driver + "/sys/bus/pci/devices")) paths.sys = paths.driver + "/sys";
  return paths;
}

// Copies the hook from this program's directory into `directory`; returns its path. Running containers keep
// the one that they were started with.
Result<std::string> install_hook(const std::string& directory) {
  const std::string path = directory + "/" + std::string(kHook);
  const std::string source = program_directory() + "/" + std::string(kHook);
  GPULET_TRY_ASSIGN(const std::string program, read_file(source, kMaxHookBytes));
  const auto there = read_file(path, kMaxHookBytes);
  struct stat status{};
  const bool runs = ::stat(path.c_str(), &status) == 0 && (status.st_mode & 0111) == 0111;
  if (!there || *there != program || !runs) GPULET_TRY(write_file_atomic(path, program, 0755));
  return path;
}

struct DriverLibraries {
  bool cuda = false;
  // The directories of libcuda and libnvidia-ml: a package upgrade puts the new versions there.
  std::vector<std::string> directories;
};

DriverLibraries driver_libraries(const std::vector<cdi::Spec>& specs, const cdi::Root& root) {
  std::set<std::string> directories;
  bool cuda = false;
  for (const auto& spec : specs) {
    for (const auto& mount : spec.edits.mounts) {
      const auto slash = mount.host_path.rfind('/');
      const auto name = std::string_view(mount.host_path).substr(slash + 1);
      if (!name.starts_with("libcuda.so.") && !name.starts_with("libnvidia-ml.so.")) continue;
      cuda |= name.starts_with("libcuda.so.");
      if (const auto directory = root.from_host(mount.host_path.substr(0, slash))) {
        directories.insert(root.root_path() == "/" ? *directory : root.root_path() + *directory);
      }
    }
  }
  return {cuda, {directories.begin(), directories.end()}};
}

cdi::NodeSpecOptions spec_options(const config::Config& config, CdiWriteResult& result) {
  const auto& flags = config.flags;
  cdi::NodeSpecOptions options;
  options.names = flags.device_id_strategy == config::DeviceIdStrategy::kUuid ? cdi::NameStrategy::kUuid
                                                                              : cdi::NameStrategy::kIndex;
  options.gds = flags.gds_enabled;
  options.mofed = flags.mofed_enabled;
  options.gdrcopy = flags.gdrcopy_enabled;
  options.hooks.path = flags.nvidia_cdi_hook_path;
  if (config.gpulet.fraction.driver_limits)
    options.hooks.limit_socket = limit_socket_path(config.gpulet.fraction);
  for (const auto& hook : flags.cdi_disable_hooks) {
    const auto known = cdi::check_hook_name(hook, true);
    if (known) options.hooks.disabled.insert(hook);
    if (!known) result.warnings.push_back("cdi-disable-hooks: " + known.error().full_message());
  }
  for (const auto& flag : flags.cdi_feature_flags) {
    const auto applied = cdi::apply_feature_flag(flag, options.driver, options.additional_gids);
    if (!applied) result.warnings.push_back("cdi-feature-flags: " + applied.error().full_message());
  }
  return options;
}

// The documents of the node; none if `result` has an error.
std::vector<cdi::Spec> make_specs(const inventory::Snapshot& snapshot, const config::Config& config,
                                  cdi::NodeSpecOptions options, CdiWriteResult& result) {
  if (!config.gpulet.cdi.hook_dir.empty()) {
    auto hook = install_hook(config.gpulet.cdi.hook_dir);
    if (!hook) {
      result.error = hook.error();
      return {};
    }
    options.hooks.path = std::move(*hook);
  }
  const auto roots = cdi::open_roots(root_paths(config.flags));
  if (!roots) {
    result.error = roots.error();
    return {};
  }
  auto made = cdi::make_node_specs(*roots, snapshot, options);
  result.warnings.insert(result.warnings.end(), made.warnings.begin(), made.warnings.end());
  auto libraries = driver_libraries(made.specs, roots->driver);
  result.directories = std::move(libraries.directories);
  // A driver in the middle of an upgrade: the specs on disk stay for running containers.
  if (!snapshot.gpus.empty()) {
    result.error = made.no_gpus;
    if (!made.no_gpus && !libraries.cuda) {
      result.error =
          Error(Code::kNotFound,
                "libcuda.so." + snapshot.driver.version + " not found: no program can use a GPU without it",
                roots->driver.root_path());
    }
    if (result.error) return {};
  }
  return std::move(made.specs);
}

CdiWriteResult write_node_specs(const inventory::Snapshot& snapshot, const config::Config& config,
                                cdi::SpecDirectory& directory) {
  CdiWriteResult result;
  auto options = spec_options(config, result);
  const auto specs = make_specs(snapshot, config, std::move(options), result);
  if (result.error) return result;
  const auto on_disk = directory.write_specs(specs);
  if (!on_disk) {
    result.error = on_disk.error();
    return result;
  }
  result.names.insert(on_disk->devices.begin(), on_disk->devices.end());
  if (!on_disk->errors.empty()) result.error = on_disk->errors.front();
  return result;
}

}  // namespace

Result<cdi::Spec> make_gpu_spec(const inventory::Snapshot& snapshot, const config::Config& config) {
  CdiWriteResult result;
  auto options = spec_options(config, result);
  options.names = cdi::NameStrategy::kUuid;
  auto specs = make_specs(snapshot, config, std::move(options), result);
  if (result.error) return fail(*result.error);
  if (specs.empty()) return fail(Code::kNotFound, "this node has no GPU");
  return std::move(specs.front());  // of the GPUs
}

CdiController::Writer make_cdi_writer() {
  return [directory = std::make_shared<std::optional<cdi::SpecDirectory>>()](
             const inventory::Snapshot& snapshot, const config::Config& config) {
    if (!*directory || (*directory)->directory() != config.gpulet.cdi.spec_dir)
      directory->emplace(config.gpulet.cdi.spec_dir);
    return write_node_specs(snapshot, config, **directory);
  };
}

}  // namespace gpulet::agent
