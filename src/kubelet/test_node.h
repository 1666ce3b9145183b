// A node for this room's tests: a temporary kubelet folder, the real PluginHost on a loop thread, and an owner that
// does the least an agent does: registers, serves anew when a socket is lost, tries either again when it fails.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/loop.h"
#include "kubelet/plugin_host.h"
#include "kubelet/test_offers.h"
#include "sim/kubelet/kubelet.h"

namespace gpulet::kubelet {

inline constexpr std::chrono::seconds kPatience{20};  // a loaded machine's; nothing waits that long when it works

inline constexpr std::chrono::milliseconds kRetry{20};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    char name[] = "/tmp/gpulet-kubelet-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// One value from another thread. Not std::promise: ThreadSanitizer does not see through the library's.
template <class Value>
class Answer {
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
  LoopThread() : thread_([this] { loop_.run(); }) {}
  ~LoopThread() {
    loop_.stop();
    thread_.join();
  }
  EpollLoop& loop() { return loop_; }
  // Runs `task` on the loop and waits for its result.
  template <class Task>
  auto run(Task task) -> decltype(task()) {
    using Value = std::conditional_t<std::is_void_v<decltype(task())>, bool, decltype(task())>;
    Answer<Value> answer;
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

class Node {
 public:
  explicit Node(const std::string& kubelet_dir, const std::string& kubelet_socket = "default") {
    PluginHostSettings settings;
    settings.folder = kubelet_dir + "/device-plugins";
    settings.kubelet_socket = kubelet_socket == "default" ? settings.folder + "/kubelet.sock" : kubelet_socket;
    thread_.run([&] {
      host_ = make_plugin_host(thread_.loop(), make_rpc(), settings);
      host_->set_events({
          .kubelet_started =
              [this] {
                note([this] { ++kubelet_starts; });
                for (const auto& [name, offer] : offers_) serve_now(name);
              },
          .socket_lost =
              [this](const ResourceName& name) {
                note([this] { ++sockets_lost; });
                serve_now(name);
              },
          .watched =
              [this](const ResourceName& name, bool watched) {
                note([&] { watched_[name] = watched; });
              },
      });
    });
  }
  ~Node() { stop(); }

  // How long the host and its gRPC thread took to go.
  std::chrono::nanoseconds stop() {
    const auto began = std::chrono::steady_clock::now();
    thread_.run([this] {
      retries_.clear();
      serve_retries_.clear();
      host_.reset();
    });
    return std::chrono::steady_clock::now() - began;
  }

  std::map<ResourceName, ResourceCalls> calls() {
    std::map<ResourceName, ResourceCalls> counted;
    thread_.run([&] { counted = host_->calls(); });
    return counted;
  }
  Status serve(Offer offer) {
    return thread_.run([&] {
      const ResourceName name = offer.resource.name;
      offers_[name] = offers::share_offer(std::move(offer));
      return serve_now(name);
    });
  }
  void withdraw(const std::string& name) {
    thread_.run([&] {
      offers_.erase(ResourceName(name));
      retries_.erase(ResourceName(name));
      serve_retries_.erase(ResourceName(name));
      host_->withdraw(ResourceName(name));
    });
  }
  // One try, without another after it.
  Status register_once(const std::string& name) {
    Answer<Status> answer;
    thread_.run([&] {
      host_->register_resource(ResourceName(name), [&](const Status& status) { answer.set(status); });
    });
    return answer.get();
  }
  LoopThread& thread() { return thread_; }
  PluginHost& host() { return *host_; }

  bool wait(const std::function<bool()>& done) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, done);
  }
  bool wait_watched(const std::string& name, bool watched) {
    return wait([&] { return watched_[ResourceName(name)] == watched; });
  }
  // Read inside wait().
  int kubelet_starts = 0, sockets_lost = 0, registered = 0;
  std::string last_error;

 private:
  template <class Change>
  void note(Change change) {
    {
      std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }
  Status serve_now(const ResourceName& name) {
    const auto status = host_->serve(offers_.at(name));
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
      note([&] {
        if (status) ++registered;
        else last_error = status.error().text();
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
  std::unique_ptr<PluginHost> host_;
  LoopThread thread_;  // last: its end comes before what its tasks use
};

inline std::unique_ptr<sim::Kubelet> start_kubelet(sim::KubeletSettings settings) {
  auto kubelet = sim::Kubelet::start(std::move(settings));
  EXPECT_TRUE(kubelet) << kubelet.error().text();
  return kubelet ? std::move(*kubelet) : nullptr;
}

}  // namespace gpulet::kubelet
