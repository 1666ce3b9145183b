#include "mps/manager.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/log.h"

namespace gpulet::mps {

Manager::Manager(Loop& loop, DaemonOptions options, SetComputeMode set_compute_mode, TellHealth health)
    : loop_(loop),
      options_(std::move(options)),
      set_compute_mode_(std::move(set_compute_mode)),
      tell_health_(std::move(health)) {}

Manager::~Manager() = default;

void Manager::apply(std::vector<DaemonSpec> specs) {
  wanted_ = std::move(specs);
  if (!std::exchange(looked_for_former_, true)) stop_former();
  settle();
}

void Manager::stop(std::function<void()> done) {
  stopped_ = std::move(done);
  apply({});
}

bool Manager::is_wanted(const Daemon& daemon) const {
  return std::ranges::any_of(
      wanted_, [&](const DaemonSpec& spec) { return serves_same_devices(spec, daemon.spec()); });
}

// Two daemons would fight for a GPU, or for a folder.
bool Manager::waits_for_a_stop(const DaemonSpec& spec) const {
  return std::ranges::any_of(stopping_, [&](const auto& daemon) {
    if (daemon->spec().name == spec.name) return true;
    return std::ranges::any_of(spec.devices, [&](const SharedDevice& device) {
      return std::ranges::any_of(daemon->spec().devices,
                                 [&](const SharedDevice& other) { return other.uuid == device.uuid; });
    });
  });
}

void Manager::settle() {
  std::vector<std::string> gone;
  for (const auto& [name, daemon] : daemons_) {
    if (!is_wanted(*daemon)) gone.push_back(name);
  }
  for (const auto& name : gone) stop_one(name);
  for (const auto& spec : wanted_) {
    const auto running = daemons_.find(spec.name);
    if (running != daemons_.end()) {
      running->second->change(spec);
    } else if (!waits_for_a_stop(spec)) {
      start(spec);
    } else {
      tell_health_(spec.name, *health(spec.name));
    }
  }
  update_ready_file();
  if (!stopped_ || !daemons_.empty() || !stopping_.empty()) return;
  loop_.post([done = std::exchange(stopped_, nullptr)] { done(); });
}

void Manager::start(const DaemonSpec& spec) {
  DaemonOptions options = options_;
  options.seed += ++started_;
  auto& daemon = daemons_[spec.name];
  daemon = std::make_unique<Daemon>(
      loop_, spec, options, set_compute_mode_,
      [this, name = spec.name](const inventory::Health& health) { on_health(name, health); });
  daemon->start();
}

void Manager::stop_one(const std::string& name) {
  auto daemon = std::move(daemons_.at(name));
  daemons_.erase(name);
  log::info("an MPS control daemon is stopped", {{"daemon", name}});
  await_stop(std::move(daemon));
}

// Folders are "<domain>/<resource>", with a MIG device's below. What containers can write is not looked into.
void Manager::stop_former() {
  constexpr int kResource = 1;
  constexpr int kDeepest = 3;
  std::error_code error;
  std::vector<std::string> names;
  auto entry = std::filesystem::recursive_directory_iterator(options_.root, error);
  for (; !error && entry != std::filesystem::end(entry); entry.increment(error)) {
    const auto name = entry->path().filename();
    const bool of_containers =
        entry.depth() == 0 ? name == "shm" : entry.depth() > kResource && (name == "pipe" || name == "log");
    if (of_containers || entry.depth() >= kDeepest) entry.disable_recursion_pending();
    if (name != ".started") continue;
    names.push_back(std::filesystem::relative(entry->path().parent_path(), options_.root, error).string());
  }
  for (const auto& name : names) {
    if (std::ranges::any_of(wanted_, [&](const DaemonSpec& spec) { return spec.name == name; })) continue;
    auto spec = former_daemon(options_.root, name);
    if (!spec) continue;
    log::info("an MPS control daemon from before is not wanted any more", {{"daemon", name}});
    await_stop(std::make_unique<Daemon>(loop_, std::move(*spec), options_, set_compute_mode_,
                                        [](const inventory::Health&) {}));
  }
}

void Manager::await_stop(std::unique_ptr<Daemon> daemon) {
  Daemon* const raw = daemon.get();
  stopping_.push_back(std::move(daemon));
  // Posted: it may have nothing to wait for, and must not go while it is being told.
  raw->stop([this, raw, alive = std::weak_ptr<bool>(alive_)] {
    loop_.post([this, raw, alive] {
      if (alive.expired()) return;
      std::erase_if(stopping_, [raw](const auto& stopped) { return stopped.get() == raw; });
      settle();
    });
  });
}

std::optional<inventory::Health> Manager::health(const std::string& name) const {
  if (const auto found = daemons_.find(name); found != daemons_.end()) return found->second->health();
  if (std::ranges::none_of(wanted_, [&](const DaemonSpec& spec) { return spec.name == name; }))
    return std::nullopt;
  return inventory::Health{false, "the MPS control daemon of " + name + " waits for another to end"};
}

void Manager::on_health(const std::string& name, const inventory::Health& health) {
  update_ready_file();
  tell_health_(name, health);
}

// What NVIDIA's probes and plugin look for: all daemons are up, even if there is none.
void Manager::update_ready_file() {
  const bool ready = !stopped_ && std::ranges::all_of(wanted_, [&](const DaemonSpec& spec) {
    const auto found = daemons_.find(spec.name);
    return found != daemons_.end() && found->second->health().healthy;
  });
  if (ready_ == ready) return;
  const std::string path = ready_file(options_.root);
  if (!ready) {
    ::unlink(path.c_str());
  } else if (const auto written = write_file_atomic(path, ""); !written) {
    log::warning("cannot say that the MPS control daemons are ready", written.error());
    return;
  }
  ready_ = ready;
}

}  // namespace gpulet::mps
