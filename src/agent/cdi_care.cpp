#include "agent/cdi_care.h"

#include <algorithm>

#include "base/log.h"

namespace gpulet::agent {
namespace {

// Packages put many files in place one after the other: the last of them decides.
constexpr Duration kFolderSettle = std::chrono::milliseconds(100);
// A disk that is full, or a driver that is not whole yet, is tried again this often.
constexpr Duration kRetry = std::chrono::seconds(5);

// All that specs are made of, as text: equal texts, equal specs.
std::string key_of(const inventory::Snapshot& snapshot, const config::Config& config) {
  std::string key = snapshot.driver.version + '\n' + std::to_string(snapshot.driver.cuda_version);
  for (const auto& gpu : snapshot.gpus) {
    key += '\n' + gpu.uuid.str() + ' ' + std::to_string(gpu.index) + ' ' + std::to_string(gpu.minor) + ' ' +
           gpu.pci.sysfs() + (gpu.mig_enabled ? " mig" : "") + (gpu.unreadable ? " unreadable" : "");
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
  return key;
}

}  // namespace

bool uses_cdi(const config::Config& config) {
  return std::ranges::any_of(config.flags.device_list_strategy, [](auto strategy) {
    return strategy == config::DeviceListStrategy::kCdiAnnotations ||
           strategy == config::DeviceListStrategy::kCdiCri;
  });
}

CdiCare::CdiCare(Loop& loop, Reporter& reporter, std::function<void()> changed, Writer writer)
    : loop_(loop),
      reporter_(reporter),
      changed_(std::move(changed)),
      writer_(std::move(writer)),
      relay_(std::make_shared<Relay>(loop)) {}

CdiCare::~CdiCare() { relay_->close(); }

std::optional<std::set<std::string>> CdiCare::wants(const inventory::Snapshot& snapshot,
                                                    const config::Config& config) {
  if (!uses_cdi(config)) return std::nullopt;
  std::string key = key_of(snapshot, config);
  if (key != wanted_for_) {
    // What names are on disk lead to another driver's files.
    if (snapshot_ && snapshot_->driver.version != snapshot.driver.version) names_.clear();
    wanted_for_ = std::move(key);
    snapshot_ = std::make_shared<const inventory::Snapshot>(snapshot);
    config_ = std::make_shared<const config::Config>(config);
    start();
  }
  return names_;
}

void CdiCare::start() {
  soon_.reset();
  if (writing_) {
    again_ = true;
    return;
  }
  const auto work = [this, alive = std::weak_ptr(alive_), relay = relay_, writer = writer_,
                     snapshot = snapshot_, config = config_] {
    relay->post([this, alive, result = writer(*snapshot, *config)] {
      if (!alive.expired()) written(result);
    });
  };
  const auto started = start_detached("CDI specs", work);
  writing_ = started.has_value();
  if (!started) written({names_, folders_, {}, started.error()});
}

void CdiCare::written(CdiWritten result) {
  writing_ = false;
  for (const auto& warning : result.warnings) log::debug(warning);
  const std::string told = result.error ? result.error->text() : "";
  if (told != told_) {
    told_ = told;
    if (result.error) reporter_.event(Reporter::Severity::kWarning, "CdiSpecFailed", told);
  }
  if (std::exchange(again_, false)) {
    start();
  } else if (result.error) {
    soon_ = loop_.after(kRetry, [this] { start(); });
  }
  follow(result.watch);
  if (result.names == names_) return;
  names_ = std::move(result.names);
  changed_();
}

// A driver's files may change while the module that is loaded stays the same.
void CdiCare::follow(const std::vector<std::string>& folders) {
  if (folders == folders_) return;
  folders_ = folders;
  watches_.clear();
  if (!inotify_) {
    auto opened = InotifyWatch::open(loop_);
    if (!opened) return log::warning("changes of the driver's files are not seen", opened.error());
    inotify_ = std::move(*opened);
  }
  for (const auto& folder : folders_) {
    auto watch = inotify_->add(
        folder, IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_CLOSE_WRITE | IN_ONLYDIR,
        [this](const std::string&, std::uint32_t) {
          if (!soon_) soon_ = loop_.after(kFolderSettle, [this] { start(); });
        });
    if (watch) watches_.push_back(std::move(*watch));
  }
}

}  // namespace gpulet::agent
