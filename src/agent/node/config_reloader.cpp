#include "agent/node/config_reloader.h"

#include <utility>

#include "agent/node/devices.h"
#include "base/log.h"
#include "config/print.h"

namespace gpulet::agent {
namespace {

// How long to wait for the Node label that selects the config before using the config for nodes without a
// label.
constexpr Duration kLabelTimeout = std::chrono::seconds(5);

}  // namespace

void ConfigReloader::start() {
  if (node_.is_config_pending) return watch_directory();
  watch_file();
}

void ConfigReloader::watch_file() {
  if (node_.config.config_file.empty()) return;
  auto watch = FileWatcher::watch_path(node_.loop, node_.config.config_file, [this] { reload_config(); });
  if (!watch) return log::warning("cannot watch the config file; send SIGHUP to reload it", watch.error());
  file_watch_ = std::move(*watch);
}

// Nothing is offered before it is known which config is this node's.
void ConfigReloader::watch_directory() {
  auto watcher = config::ConfigDirectoryWatcher::watch_directory(
      node_.loop, node_.config.node_config,
      [this](const std::string& path, const std::optional<std::string>& problem) {
        if (problem) node_.reporter->report_event(Reporter::Severity::kWarning, "NodeConfig", *problem);
        node_.sources.flags["config-file"] = {path};
        reload_config();
      });
  if (!watcher) {
    node_.reporter->report_event(Reporter::Severity::kWarning, "NodeConfig", watcher.error().full_message());
    node_.is_config_pending = false;
    return watch_file();
  }
  directory_ = std::move(*watcher);
  label_timeout_ = node_.loop.after(kLabelTimeout, [this] {
    if (node_.is_config_pending) directory_->set_label(std::nullopt);
  });
}

void ConfigReloader::on_node_labels() {
  if (!directory_) return;
  const auto label = node_.labels.find(node_.config.node_config.label);
  directory_->set_label(label == node_.labels.end() ? std::nullopt : std::optional(label->second));
}

void ConfigReloader::reload_config() {
  auto sources = node_.sources;
  node_.is_config_pending = false;
  if (const auto read = config::read_config_file(sources); !read)
    return node_.devices->reject_config(read.error());
  const auto* agent = node_.devices->agent();
  if (agent != nullptr && last_content_ == sources.file_content && !agent->status().config_error) return;
  auto loaded = config::load(sources);
  last_content_ = sources.file_content;
  if (!loaded) return node_.devices->reject_config(loaded.error());
  for (const auto& warning : loaded->warnings) log::warning(warning);
  node_.config_text = config::print_yaml(*loaded);
  node_.config = std::move(loaded->config);
  configure_log(node_.config.gpulet);
  node_.components.for_each_reversed([](Component& component) { component.apply_config(); });
}

}  // namespace gpulet::agent
