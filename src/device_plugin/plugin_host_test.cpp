// The real PluginHost against the embedded kubelet, each over real sockets in its own directory.
#include "device_plugin/plugin_host.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/file.h"
#include "device_plugin/test_node.h"
#include "sim/kubelet/rpc.h"

namespace gpulet::device_plugin {
namespace {

using namespace std::chrono_literals;
using offers::gpu_uuid;

// Slower under a sanitizer; time limits apply without one.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSlowdown = 10;
#else
constexpr int kSlowdown = 1;
#endif

const std::string kGpu = "nvidia.com/gpu";

sim::PodRequest pod_json(const std::string& name, unsigned gpus) {
  return {"default", name, "", {{"main", {{kGpu, gpus}}}}};
}

std::size_t threads_now() {
  std::size_t count = 0;
  DIR* directory = ::opendir("/proc/self/task");
  if (directory == nullptr) return 0;
  while (const auto* entry = ::readdir(directory)) count += entry->d_name[0] != '.' ? 1u : 0u;
  ::closedir(directory);
  return count;
}

class PluginHostTest : public testing::Test {
 protected:
  std::string socket(const std::string& name = "nvidia-gpu.sock") const {
    return directory_.directory_path() + "/device-plugins/" + name;
  }
  sim::KubeletSettings settings() const {
    sim::KubeletSettings settings;
    settings.dir = directory_.directory_path();
    return settings;
  }
  // A client of the plugin that is not the kubelet.
  std::shared_ptr<sim::PluginClient> connect_client() {
    auto client = sim::PluginClient::connect_plugin(socket());
    EXPECT_TRUE(client) << client.error().full_message();
    return client ? *client : nullptr;
  }
  TemporaryDirectory directory_;
};

// The newest list of one ListAndWatch stream, and the number of lists.
class Watcher {
 public:
  explicit Watcher(std::shared_ptr<sim::PluginClient> client) : client_(std::move(client)) {
    client_->start_list_and_watch(
        [this](sim::PluginClient::List list) {
          std::lock_guard lock(mutex_);
          list_ = std::move(list);
          ++lists_;
          changed_.notify_all();
        },
        [this] {
          std::lock_guard lock(mutex_);
          ended_ = true;
          changed_.notify_all();
        });
  }
  ~Watcher() { client_->close_client(); }
  bool wait_healthy(std::size_t count) {
    return wait_for_lists([&] {
      return lists_ > 0 && static_cast<std::size_t>(std::ranges::count_if(
                               list_, [](const auto& entry) { return entry.second.healthy; })) == count;
    });
  }
  bool wait_ended() {
    return wait_for_lists([&] { return ended_; });
  }
  int lists() {
    std::lock_guard lock(mutex_);
    return lists_;
  }

 private:
  bool wait_for_lists(const std::function<bool()>& done) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, done);
  }
  std::shared_ptr<sim::PluginClient> client_;
  std::mutex mutex_;
  std::condition_variable changed_;
  sim::PluginClient::List list_;
  int lists_ = 0;
  bool ended_ = false;
};

TEST_F(PluginHostTest, RegistersListsAndAllocates) {
  const auto kubelet = start_kubelet(settings());
  TestNode node(directory_.directory_path());
  ASSERT_TRUE(node.serve_offer(offers::make_offer()));
  ASSERT_TRUE(kubelet->wait_for_allocatable(kGpu, 8, kPatience));
  ASSERT_TRUE(node.wait_watched(kGpu, true));
  const auto state = kubelet->kubelet_state();
  const auto& resource = state.resources.at(kGpu);
  EXPECT_EQ(resource.endpoint, "nvidia-gpu.sock");
  EXPECT_TRUE(resource.preferred_allocation_available);
  EXPECT_EQ(resource.devices.at(gpu_uuid(0)).numa_nodes, std::set<int>{0});
  EXPECT_EQ(resource.devices.at(gpu_uuid(7)).numa_nodes, std::set<int>{1});

  const auto grant = kubelet->admit_pod(pod_json("pair", 2));
  ASSERT_TRUE(grant) << grant.error().full_message();
  const auto& ids = grant->containers.at(0).devices.at(kGpu);
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(grant->containers[0].envs.at("NVIDIA_VISIBLE_DEVICES"), ids[0] + "," + ids[1]);
  std::set<std::string> calls;
  for (const auto& latency : kubelet->kubelet_state().latencies) calls.insert(latency.call);
  EXPECT_EQ(calls, (std::set<std::string>{"Allocate", "FirstList", "GetDevicePluginOptions",
                                          "GetPreferredAllocation", "Register"}));
  const auto counted = node.call_counts().at(ResourceName(kGpu));
  EXPECT_EQ(counted.calls.at("Allocate").answered, 1u);
  EXPECT_EQ(counted.calls.at("Allocate").refused, 0u);
  EXPECT_GT(counted.calls.at("GetPreferredAllocation").time.count(), 0);
  EXPECT_TRUE(counted.score);
}

TEST_F(PluginHostTest, EveryStreamGetsEveryChangeAndOnlyChanges) {
  TestNode node(directory_.directory_path());
  std::filesystem::create_directories(directory_.directory_path() + "/device-plugins");
  ASSERT_TRUE(node.serve_offer(offers::make_offer()));
  Watcher first(connect_client()), second(connect_client());
  ASSERT_TRUE(first.wait_healthy(8));
  ASSERT_TRUE(second.wait_healthy(8));
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(node.serve_offer(offers::with_unhealthy(offers::make_offer(), 3)));
    ASSERT_TRUE(first.wait_healthy(7));
    ASSERT_TRUE(second.wait_healthy(7));
    ASSERT_TRUE(node.serve_offer(offers::make_offer()));
    ASSERT_TRUE(first.wait_healthy(8));
    ASSERT_TRUE(second.wait_healthy(8));
  }
  // An offer that differs only in data outside the list sends nothing, and Allocate uses it immediately.
  Offer other = offers::make_offer();
  other.rules.gds = true;
  ASSERT_TRUE(node.serve_offer(std::move(other)));
  const auto response = connect_client()->call_allocate({gpu_uuid(1)});
  ASSERT_TRUE(response);
  sim::ContainerGrant grant;
  sim::add_response(*response, grant);
  EXPECT_EQ(grant.envs.at("NVIDIA_GDS"), "enabled");
  EXPECT_EQ(first.lists(), 11);
  EXPECT_EQ(second.lists(), 11);
}

TEST_F(PluginHostTest, WatchedReportsTheFirstAndTheLastStream) {
  std::filesystem::create_directories(directory_.directory_path() + "/device-plugins");
  TestNode node(directory_.directory_path());
  ASSERT_TRUE(node.serve_offer(offers::make_offer()));
  auto first = std::make_unique<Watcher>(connect_client());
  ASSERT_TRUE(node.wait_watched(kGpu, true));
  Watcher second(connect_client());
  ASSERT_TRUE(second.wait_healthy(8));
  first.reset();
  ASSERT_TRUE(node.serve_offer(offers::with_unhealthy(offers::make_offer(), 0)));
  ASSERT_TRUE(second.wait_healthy(7));
  ASSERT_TRUE(node.wait_watched(kGpu, true));
  node.withdraw(kGpu);
  EXPECT_TRUE(second.wait_ended());
  EXPECT_FALSE(file_identity(socket()));
}

TEST_F(PluginHostTest, BadRequestsGetTheirStatus) {
  std::filesystem::create_directories(directory_.directory_path() + "/device-plugins");
  TestNode node(directory_.directory_path());
  ASSERT_TRUE(node.serve_offer(offers::with_unhealthy(offers::make_offer(), 5)));
  const auto client = connect_client();
  const auto text = [](const auto& result) {
    return result ? std::string("no error") : result.error().message();
  };
  const std::string prefix = "invalid allocation request for \"nvidia.com/gpu\": ";
  EXPECT_EQ(text(client->call_allocate({"GPU-x"})),
            "rpc error: code = InvalidArgument desc = " + prefix + "unknown device: GPU-x");
  EXPECT_EQ(text(client->call_allocate({gpu_uuid(5)})),
            "rpc error: code = FailedPrecondition desc = " + prefix + "device is unhealthy: " + gpu_uuid(5) +
                " (XID 79)");
  EXPECT_EQ(text(client->call_allocate({})),
            "rpc error: code = InvalidArgument desc = " + prefix + "no device requested");
  EXPECT_EQ(text(client->call_allocate({gpu_uuid(1), gpu_uuid(1)})),
            "rpc error: code = InvalidArgument desc = " + prefix + "device requested twice: " + gpu_uuid(1));
  const auto starts = [&](const auto& result) { return text(result).substr(0, 40); };
  const std::string invalid = std::string("rpc error: code = InvalidArgument desc = invalid").substr(0, 40);
  EXPECT_EQ(starts(client->get_preferred_allocation({gpu_uuid(0)}, {}, 2)), invalid);  // too many
  EXPECT_EQ(starts(client->get_preferred_allocation({gpu_uuid(0)}, {}, 0)), invalid);  // none
  EXPECT_EQ(starts(client->get_preferred_allocation({gpu_uuid(0)}, {gpu_uuid(1)}, 1)),
            invalid);  // required outside available
  EXPECT_EQ(starts(client->get_preferred_allocation({gpu_uuid(0), "GPU-x"}, {}, 1)), invalid);  // unknown
  EXPECT_EQ(starts(client->get_preferred_allocation({gpu_uuid(0), gpu_uuid(0)}, {}, 1)),
            invalid);  // duplicate
  EXPECT_TRUE(client->call_allocate({gpu_uuid(0)})) << "a bad request costs the connection nothing";
}

TEST_F(PluginHostTest, SurvivesKubeletRestarts) {
  const auto kubelet = start_kubelet(settings());
  TestNode node(directory_.directory_path());
  ASSERT_TRUE(node.serve_offer(offers::make_offer()));
  ASSERT_TRUE(node.serve_offer(offers::make_offer("nvidia.com/mig-1g.10gb", 2)));
  ASSERT_TRUE(kubelet->wait_for_allocatable(kGpu, 8, kPatience));
  const auto grant = kubelet->admit_pod(pod_json("keeps", 2));
  ASSERT_TRUE(grant) << grant.error().full_message();
  auto fastest = std::chrono::nanoseconds::max();
  for (int round = 0; round < 5; ++round) {
    kubelet->stop_kubelet();
    ASSERT_TRUE(node.wait_watched(kGpu, false));
    const auto began = std::chrono::steady_clock::now();
    ASSERT_TRUE(kubelet->resume_kubelet());
    ASSERT_TRUE(kubelet->wait_for_allocatable(kGpu, 8, kPatience));
    fastest = std::min<std::chrono::nanoseconds>(fastest, std::chrono::steady_clock::now() - began);
    ASSERT_TRUE(kubelet->wait_for_allocatable("nvidia.com/mig-1g.10gb", 2, kPatience));
    const auto held = kubelet->kubelet_state().grants.at(grant->uid).containers.at(0).devices.at(kGpu);
    EXPECT_EQ(std::set(held.begin(), held.end()), std::set(grant->containers[0].devices.at(kGpu).begin(),
                                                           grant->containers[0].devices.at(kGpu).end()));
  }
  EXPECT_LT(fastest, 100ms * kSlowdown);
  const auto rest = kubelet->admit_pod(pod_json("rest", 6));
  ASSERT_TRUE(rest) << rest.error().full_message();
  const auto none = kubelet->admit_pod(pod_json("none", 1));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message(),
            "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for "
            "nvidia.com/gpu. Requested: 1, Available: 0, which is unexpected");
}

TEST_F(PluginHostTest, DeletedOrReplacedSocketIsRestoredImmediately) {
  const auto kubelet = start_kubelet(settings());
  TestNode node(directory_.directory_path());
  ASSERT_TRUE(node.serve_offer(offers::make_offer()));
  ASSERT_TRUE(kubelet->wait_for_allocatable(kGpu, 8, kPatience));
  auto fastest = std::chrono::nanoseconds::max();
  for (int round = 1; round <= 5; ++round) {
    const auto before = kubelet->kubelet_state().resources.at(kGpu).registrations;
    const auto began = std::chrono::steady_clock::now();
    std::filesystem::remove(socket());
    ASSERT_TRUE(kubelet->wait_for(
        [&](const sim::KubeletState& state) {
          return state.resources.at(kGpu).registrations > before &&
                 state.resources.at(kGpu).allocatable() == 8;
        },
        kPatience));
    fastest = std::min<std::chrono::nanoseconds>(fastest, std::chrono::steady_clock::now() - began);
    ASSERT_TRUE(node.wait_until([&] { return node.sockets_lost == round; }));
  }
  EXPECT_LT(fastest, 100ms * kSlowdown);
  // Another process' socket in its place.
  const auto before = kubelet->kubelet_state().resources.at(kGpu).registrations;
  const auto theirs = bind_unix_socket(socket("theirs.sock"));
  ASSERT_TRUE(theirs);
  std::filesystem::rename(socket("theirs.sock"), socket());
  ASSERT_TRUE(kubelet->wait_for(
      [&](const sim::KubeletState& state) {
        return state.resources.at(kGpu).registrations > before && state.resources.at(kGpu).allocatable() == 8;
      },
      kPatience));
  EXPECT_TRUE(connect_client()->call_allocate({gpu_uuid(0)}));
}

// As a kubelet that clears its directory while the plugin restarts.
TEST_F(PluginHostTest, SocketDeletedDuringStartIsRestored) {
  const auto kubelet = start_kubelet(settings());
  TestNode node(directory_.directory_path());
  ASSERT_TRUE(node.serve_offer(offers::make_offer()));
  for (int round = 0; round < 20; ++round) {
    const std::string path = socket();
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (int removed = 0; removed < 20 && std::chrono::steady_clock::now() < deadline;) {
      removed += ::unlink(path.c_str()) == 0 ? 1 : 0;
    }
    // The kubelet connects to the path before it responds.
    Status registered = node.register_once(kGpu);
    while (!registered && std::chrono::steady_clock::now() < deadline) registered = node.register_once(kGpu);
    ASSERT_TRUE(registered) << "round " << round << ": " << registered.error().full_message();
  }
}

TEST_F(PluginHostTest, WaitsForMissingDirectories) {
  const std::string later = directory_.directory_path() + "/var/lib/kubelet";
  TestNode node(later);
  const auto status = node.serve_offer(offers::make_offer());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kNotFound);
  auto late = settings();
  late.dir = later;
  const auto kubelet = start_kubelet(late);
  ASSERT_TRUE(kubelet->wait_for_allocatable(kGpu, 8, kPatience));
  // The whole directory is removed and created again, as when a kubelet is reinstalled.
  kubelet->stop_kubelet();
  std::filesystem::remove_all(directory_.directory_path() + "/var");
  ASSERT_TRUE(node.wait_until([&] { return node.sockets_lost >= 1; }));
  ASSERT_TRUE(kubelet->resume_kubelet());
  ASSERT_TRUE(kubelet->wait_for_allocatable(kGpu, 8, kPatience));
}

TEST_F(PluginHostTest, KubeletThatBindsLongBeforeItListens) {
  auto slow = settings();
  slow.listen_delay = 50ms;
  const auto kubelet = start_kubelet(slow);
  TestNode node(directory_.directory_path());
  ASSERT_TRUE(node.serve_offer(offers::make_offer()));
  ASSERT_TRUE(kubelet->wait_for_allocatable(kGpu, 8, kPatience));
  ASSERT_TRUE(node.wait_until([&] { return node.registered == 1; }));
  EXPECT_EQ(node.last_error, "") << "it took more than one try";
}

TEST_F(PluginHostTest, KubeletThatRefusesOrRespondsLateOrNever) {
  const auto kubelet = start_kubelet(settings());
  TestNode node(directory_.directory_path());
  kubelet->set_register_behavior(sim::RegisterBehavior::kRefuse);
  ASSERT_TRUE(node.serve_offer(offers::make_offer()));
  ASSERT_TRUE(
      kubelet->wait_for([](const auto& state) { return state.refused_registrations >= 3; }, kPatience));
  ASSERT_TRUE(node.wait_until([&] {
    return node.last_error.ends_with("the kubelet did not accept the registration: registration is refused");
  })) << node.last_error;
  kubelet->set_register_behavior(sim::RegisterBehavior::kDelay);
  ASSERT_TRUE(kubelet->wait_for_allocatable(kGpu, 8, kPatience));
  ASSERT_TRUE(node.wait_until([&] { return node.registered == 1; }));
  // Every attempt ends within kRegisterTimeout, and the loop is not blocked meanwhile.
  kubelet->set_register_behavior(sim::RegisterBehavior::kIgnore);
  const auto began = std::chrono::steady_clock::now();
  AsyncResult<Status> silent;
  node.thread().run_on_loop([&] {
    node.host().register_resource(ResourceName(kGpu), [&](const Status& status) { silent.set(status); });
  });
  node.thread().run_on_loop([&] {
    return node.host().serve_offer(offers::share_offer(offers::with_unhealthy(offers::make_offer(), 2)));
  });
  ASSERT_TRUE(kubelet->wait_for_allocatable(kGpu, 7, kPatience));
  EXPECT_LT(std::chrono::steady_clock::now() - began, kRegisterTimeout);
  const auto status = silent.get();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kDeadlineExceeded);
}

TEST_F(PluginHostTest, RegistrationFailuresHaveTheirCodes) {
  std::filesystem::create_directories(directory_.directory_path() + "/device-plugins");
  TestNode node(directory_.directory_path());
  ASSERT_TRUE(node.serve_offer(offers::make_offer()));
  const auto absent = node.register_once(kGpu);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), Code::kUnavailable);
  const auto unserved = node.register_once("nvidia.com/other");
  ASSERT_FALSE(unserved);
  EXPECT_EQ(unserved.error().code(), Code::kFailedPrecondition);
  std::ofstream(socket("nvidia-file.sock")) << "not a socket";
  const auto file = node.serve_offer(offers::make_offer("nvidia.com/file", 1));
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), Code::kFailedPrecondition);
  TestNode unregistered(directory_.directory_path(), "");
  const auto off = unregistered.register_once(kGpu);
  ASSERT_FALSE(off);
  EXPECT_EQ(off.error().code(), Code::kFailedPrecondition);
  EXPECT_EQ(socket_name(ResourceName("nvidia.com/mig-1g.10gb.me")), "nvidia-mig-1g.10gb.me.sock");
}

TEST_F(PluginHostTest, StopsQuicklyWithOpenStreamsAndRemovesItsSockets) {
  const auto kubelet = start_kubelet(settings());
  auto fastest = std::chrono::nanoseconds::max();
  for (int round = 0; round < 3; ++round) {
    TestNode node(directory_.directory_path());
    ASSERT_TRUE(node.serve_offer(offers::make_offer()));
    ASSERT_TRUE(node.serve_offer(offers::make_offer("nvidia.com/gpu.shared", 8, 8)));
    ASSERT_TRUE(kubelet->wait_for_allocatable(kGpu, 8, kPatience));
    ASSERT_TRUE(kubelet->wait_for_allocatable("nvidia.com/gpu.shared", 64, kPatience));
    Watcher other(connect_client());
    ASSERT_TRUE(other.wait_healthy(8));
    fastest = std::min(fastest, node.stop_host());
    EXPECT_TRUE(other.wait_ended());
    EXPECT_FALSE(file_identity(socket()));
    EXPECT_FALSE(file_identity(socket("nvidia-gpu.shared.sock")));
    ASSERT_TRUE(
        kubelet->wait_for([](const auto& state) { return !state.resources.at(kGpu).connected; }, kPatience));
  }
  EXPECT_LT(fastest, 50ms * kSlowdown);
}

TEST_F(PluginHostTest, ThreadCountDoesNotGrowWithResources) {
  std::filesystem::create_directories(directory_.directory_path() + "/device-plugins");
  const auto before = threads_now();
  TestNode node(directory_.directory_path());  // one thread for its loop
  for (int i = 0; i < 20; ++i)
    ASSERT_TRUE(node.serve_offer(offers::make_offer("nvidia.com/r" + std::to_string(i), 2)));
  const auto with_host = threads_now();
  // gpulet's, and gRPC's idle threads: two executors, a timer thread, the event engine's two or three and
  // their timer.
  EXPECT_LE(with_host - before, 1u + 1u + 7u);
}

TEST_F(PluginHostTest, TopologyManagerGetsAlignedDevices) {
  auto strict = settings();
  strict.topology = sim::TopologyPolicy::kRestricted;
  const auto kubelet = start_kubelet(strict);
  TestNode node(directory_.directory_path());
  ASSERT_TRUE(node.serve_offer(offers::make_offer()));
  ASSERT_TRUE(kubelet->wait_for_allocatable(kGpu, 8, kPatience));
  std::set<std::string> given;
  for (const std::string name : {"a", "b"}) {
    const auto grant = kubelet->admit_pod(pod_json(name, 3));
    ASSERT_TRUE(grant) << grant.error().full_message();
    std::set<int> nodes;
    for (const auto& id : grant->containers[0].devices.at(kGpu)) {
      nodes.merge(std::set(kubelet->kubelet_state().resources.at(kGpu).devices.at(id).numa_nodes));
      EXPECT_TRUE(given.insert(id).second) << "given twice: " << id;
    }
    EXPECT_EQ(nodes.size(), 1u);
  }
  const auto split = kubelet->admit_pod(pod_json("split", 2));  // one free on each node
  ASSERT_FALSE(split);
  EXPECT_EQ(split.error().message(),
            "TopologyAffinityError: Resources cannot be allocated with Topology locality");
  kubelet->set_topology_policy(sim::TopologyPolicy::kBestEffort);
  EXPECT_TRUE(kubelet->admit_pod(pod_json("split", 2)));
  ASSERT_TRUE(kubelet->remove_pod("default/a"));
  EXPECT_TRUE(kubelet->admit_pod(pod_json("again", 3)));
  const auto unknown = kubelet->admit_pod({"default", "x", "", {{"main", {{"nvidia.com/none", 1}}}}});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().message(),
            "OutOfnvidia.com/none: Node didn't have enough resource: nvidia.com/none, "
            "requested: 1, used: 0, capacity: 0");
}

TEST_F(PluginHostTest, NoDeviceIsAllocatedTwiceWhilePodsChange) {
  const auto kubelet = start_kubelet(settings());
  TestNode node(directory_.directory_path());
  ASSERT_TRUE(node.serve_offer(offers::make_offer()));
  ASSERT_TRUE(kubelet->wait_for_allocatable(kGpu, 8, kPatience));
  std::mt19937_64 random(7);
  std::map<std::string, std::vector<std::string>> held;
  std::size_t used = 0;
  for (int step = 0; step < 200; ++step) {
    if (!held.empty() && random() % 2 == 0) {
      const auto gone = std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
      ASSERT_TRUE(kubelet->remove_pod(gone->first));
      used -= gone->second.size();
      held.erase(gone);
      continue;
    }
    const auto count = static_cast<unsigned>(1 + random() % 4);
    const auto grant = kubelet->admit_pod(pod_json("p" + std::to_string(step), count));
    ASSERT_EQ(grant.has_value(), used + count <= 8) << (grant ? "" : grant.error().full_message());
    if (!grant) continue;
    const auto& ids = grant->containers[0].devices.at(kGpu);
    for (const auto& [uid, theirs] : held) {
      for (const auto& id : ids) ASSERT_EQ(std::ranges::count(theirs, id), 0);
    }
    ASSERT_EQ(std::set(ids.begin(), ids.end()).size(), count);
    held[grant->uid] = ids;
    used += count;
  }
}

}  // namespace
}  // namespace gpulet::device_plugin
