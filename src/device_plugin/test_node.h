// A node for this library's tests: a temporary kubelet directory, the real PluginHost on a loop thread, and
// an owner that does the least an agent does: registers, serves again when a socket is lost, tries either
// again when it fails.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/loop.h"
#include "device_plugin/plugin_host.h"
#include "device_plugin/rpc_core.h"
#include "device_plugin/test_offers.h"
#include "sim/kubelet/kubelet.h"

namespace gpulet::device_plugin {

inline constexpr std::chrono::seconds kPatience{
    20};  // a loaded machine's; nothing waits that long when it works

inline constexpr std::chrono::milliseconds kRetry{20};

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    char name[] = "/tmp/gpulet-kubelet-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  const std::string& directory_path() const { return path_; }

 private:
  std::string path_;
};

// One value from another thread. Not std::promise: ThreadSanitizer does not see through the library's.
template <class Value>
class AsyncResult {
 public:
  void set(Value value) {
    std::lock_guard lock(mutex_);
    value_ = std::move(value);
    there_.notify_all();
  }
  Value get() {
    std::unique_lock lock(mutex_);
    there_.wait(lock, [this] { return value_.has_value(); });
    return std::move(*value_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable there_;
  std::optional<Value> value_;
};

class LoopThread {
 public:
  LoopThread() : thread_([this] { loop_.run_loop(); }) {}
  ~LoopThread() {
    loop_.stop_loop();
    thread_.join();
  }
  EpollLoop& loop() { return loop_; }
  // Runs `task` on the loop and waits for its result.
  template <class Task>
  auto run_on_loop(Task task) -> decltype(task()) {
    using Value = std::conditional_t<std::is_void_v<decltype(task())>, bool, decltype(task())>;
    AsyncResult<Value> answer;
    loop_.post([&] {
      if constexpr (std::is_void_v<decltype(task())>) {
        task();
        answer.set(true);
      } else {
        answer.set(task());
      }
    });
    Value value = answer.get();
    if constexpr (!std::is_void_v<decltype(task())>) return value;
  }

 private:
  EpollLoop loop_;
  std::thread thread_;
};

// What the host hears of who holds which device.
enum class HolderSource { kKubelet, kNone, kSilent, kFails };

class TestNode {
 public:
  explicit TestNode(const std::string& kubelet_dir, const std::string& kubelet_socket = "default",
                    HolderSource holders = HolderSource::kKubelet)
      : holders(holders) {
    PluginHostSettings settings;
    settings.directory = kubelet_dir + "/device-plugins";
    settings.kubelet_socket =
        kubelet_socket == "default" ? settings.directory + "/kubelet.sock" : kubelet_socket;
    if (holders != HolderSource::kNone) {
      settings.list_containers = [this](auto done) {
        update_and_notify([this] { ++holder_requests; });
        if (this->holders == HolderSource::kKubelet) pod_resources_->list_containers(std::move(done));
        if (this->holders == HolderSource::kFails) done(fail(Code::kUnavailable, "no answer"));
      };
    }
    thread_.run_on_loop([&] {
      const auto rpc = start_grpc_thread();
      rpc_ = rpc;
      pod_resources_ = make_pod_resources(thread_.loop(), rpc, kubelet_dir + "/pod-resources/kubelet.sock");
      host_ = make_plugin_host(thread_.loop(), rpc, settings);
      host_->set_events({
          .kubelet_started =
              [this] {
                update_and_notify([this] { ++kubelet_starts; });
                for (const auto& [name, offer] : offers_) serve_now(name);
              },
          .socket_lost =
              [this](const ResourceName& name) {
                update_and_notify([this] { ++sockets_lost; });
                serve_now(name);
              },
          .watched = [this](const ResourceName& name,
                            bool watched) { update_and_notify([&] { watched_[name] = watched; }); },
      });
    });
  }
  ~TestNode() { stop_host(); }

  // How long the host and its gRPC thread took to go.
  std::chrono::nanoseconds stop_host() {
    const auto began = std::chrono::steady_clock::now();
    thread_.run_on_loop([this] {
      retries_.clear();
      serve_retries_.clear();
      host_.reset();
      pod_resources_.reset();
    });
    return std::chrono::steady_clock::now() - began;
  }

  std::map<ResourceName, ResourceCalls> call_counts() {
    std::map<ResourceName, ResourceCalls> counted;
    thread_.run_on_loop([&] { counted = host_->call_counts(); });
    return counted;
  }
  Status serve_offer(Offer offer) {
    return thread_.run_on_loop([&] {
      const ResourceName name = offer.resource.name;
      offers_[name] = offers::share_offer(std::move(offer));
      return serve_now(name);
    });
  }
  void withdraw(const std::string& name) {
    thread_.run_on_loop([&] {
      offers_.erase(ResourceName(name));
      retries_.erase(ResourceName(name));
      serve_retries_.erase(ResourceName(name));
      host_->withdraw(ResourceName(name));
    });
  }
  // One try, without another after it.
  Status register_once(const std::string& name) {
    AsyncResult<Status> answer;
    thread_.run_on_loop([&] {
      host_->register_resource(ResourceName(name), [&](const Status& status) { answer.set(status); });
    });
    return answer.get();
  }
  // As anybody may ask the kubelet.
  Result<std::vector<ContainerDevices>> list_containers() {
    AsyncResult<Result<std::vector<ContainerDevices>>> answer;
    thread_.run_on_loop([&] {
      pod_resources_->list_containers([&](auto containers) { answer.set(std::move(containers)); });
    });
    return answer.get();
  }
  AllocationCalls allocation_calls() {
    return thread_.run_on_loop([this] { return rpc_.lock()->device_service().allocation_calls(); });
  }
  LoopThread& thread() { return thread_; }
  PluginHost& host() { return *host_; }

  bool wait_until(const std::function<bool()>& done) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, done);
  }
  bool wait_watched(const std::string& name, bool watched) {
    return wait_until([&] { return watched_[ResourceName(name)] == watched; });
  }
  std::atomic<HolderSource> holders;
  // Read inside wait().
  int kubelet_starts = 0, sockets_lost = 0, registered = 0, holder_requests = 0;
  std::string last_error;

 private:
  std::weak_ptr<GrpcThread> rpc_;
  template <class Change>
  void update_and_notify(Change change) {
    {
      std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }
  Status serve_now(const ResourceName& name) {
    const auto status = host_->serve_offer(offers_.at(name));
    if (status) {
      register_now(name);
    } else {
      serve_retries_[name] = thread_.loop().after(kRetry, [this, name] { (void)serve_now(name); });
    }
    return status;
  }
  void register_now(const ResourceName& name) {
    retries_[name].reset();
    host_->register_resource(name, [this, name](const Status& status) {
      update_and_notify([&] {
        if (status)
          ++registered;
        else
          last_error = status.error().full_message();
      });
      if (status || !offers_.contains(name)) return;
      if (status.error().message() == "a newer registration took over") return;
      retries_[name] = thread_.loop().after(kRetry, [this, name] { register_now(name); });
    });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<ResourceName, bool> watched_;
  std::map<ResourceName, OfferPtr> offers_;
  std::map<ResourceName, Subscription> retries_, serve_retries_;
  std::unique_ptr<PodResources> pod_resources_;
  std::unique_ptr<PluginHost> host_;
  LoopThread thread_;  // last: its end comes before what its tasks use
};

inline std::unique_ptr<sim::Kubelet> start_kubelet(sim::KubeletSettings settings) {
  auto kubelet = sim::Kubelet::start_kubelet(std::move(settings));
  EXPECT_TRUE(kubelet) << kubelet.error().full_message();
  return kubelet ? std::move(*kubelet) : nullptr;
}

}  // namespace gpulet::device_plugin
