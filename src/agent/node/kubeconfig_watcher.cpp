#include "agent/node/kubeconfig_watcher.h"

#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "k8s/client_config.h"

namespace gpulet::agent {
namespace {

constexpr std::size_t kMaxBytes = 1u << 20;

std::string value_of(const KubeconfigWatcher::Environment& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

}  // namespace

KubeconfigWatcher::KubeconfigWatcher(Loop& loop, Environment environment, bool is_connected,
                                     std::function<void()> restart)
    : environment_(std::move(environment)),
      list_(value_of(environment_, "KUBECONFIG")),
      is_connected_(is_connected),
      restart_(std::move(restart)) {
  if (list_.empty()) return;
  // Watch before reading: a change in between is an event.
  for (const auto& path : text::split(list_, ':')) {
    auto watch = FileWatcher::watch_path(loop, path, [this] { check_files(); });
    if (watch) {
      watches_.push_back(std::move(*watch));
    } else {
      log::warning("cannot watch the kubeconfig; restart the agent after a change", watch.error());
    }
  }
  content_ = read_content();
  if (is_connected_) return;
  // make_reporter() has logged this one.
  const auto access = k8s::find_client_config(environment_);
  error_ = access ? "" : access.error().full_message();
  check_files();
}

std::string KubeconfigWatcher::read_content() const {
  return read_file(k8s::kubeconfig_path(list_), kMaxBytes).value_or("");
}

void KubeconfigWatcher::check_files() {
  if (!restart_ || (is_connected_ && read_content() == content_)) return;
  const auto access = k8s::find_client_config(environment_);
  const std::string wrong = access ? "" : access.error().full_message();
  if (wrong != std::exchange(error_, wrong) && !access)
    log::warning("cannot use the kubeconfig", access.error());
  if (!access) return;
  log::info("the kubeconfig has changed: the agent ends, so that it starts with the new one");
  std::exchange(restart_, nullptr)();
}

}  // namespace gpulet::agent
