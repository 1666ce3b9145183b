#include "device_plugin/pod_resources.h"

#include <absl/synchronization/mutex.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"
#include "device_plugin/test_node.h"

namespace gpulet::device_plugin {
namespace {

using namespace std::chrono_literals;
using offers::gpu_uuid;

// Above gRPC's own 4 MiB. Less under ThreadSanitizer, which checks each byte that the library passes on.
#ifdef __SANITIZE_THREAD__
constexpr std::size_t kPaddingBytes = 1u << 10;
#else
constexpr std::size_t kPaddingBytes = 5u << 20;
#endif

// It would grow by a node for each address that a gRPC mutex ever had. If enabled, it would report this
// cycle.
TEST(Rpc, AbseilDeadlockDetectionIsOff) {
  const auto rpc = start_grpc_thread();
  absl::Mutex a, b;
  testing::internal::CaptureStderr();
  {
    const absl::MutexLock first(&a), second(&b);
  }
  {
    const absl::MutexLock first(&b), second(&a);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

class PodResourcesTest : public testing::Test {
 protected:
  void open_client(Duration timeout = kPodResourcesTimeout) {
    thread_.run_on_loop([&] {
      client_ = make_pod_resources(thread_.loop(), start_grpc_thread(),
                                   directory_.directory_path() + "/pod-resources/kubelet.sock", timeout);
    });
  }
  void TearDown() override {
    thread_.run_on_loop([&] { client_.reset(); });
  }
  Result<std::vector<ContainerDevices>> list_on_loop() {
    AsyncResult<Result<std::vector<ContainerDevices>>> answer;
    thread_.run_on_loop(
        [&] { client_->list_containers([&](auto result) { answer.set(std::move(result)); }); });
    return answer.get();
  }
  Result<DevicesByResource> allocatable() {
    AsyncResult<Result<DevicesByResource>> answer;
    thread_.run_on_loop(
        [&] { client_->list_allocatable([&](auto result) { answer.set(std::move(result)); }); });
    return answer.get();
  }
  TemporaryDirectory directory_;
  std::unique_ptr<PodResources> client_;
  LoopThread thread_;
};

TEST_F(PodResourcesTest, ListsAllocationsAcrossARestart) {
  sim::KubeletSettings settings;
  settings.dir = directory_.directory_path();
  settings.pod_resources_padding_bytes = kPaddingBytes;
  const auto kubelet = start_kubelet(settings);
  TestNode node(directory_.directory_path());
  ASSERT_TRUE(node.serve_offer(offers::with_unhealthy(offers::make_offer(), 0)));
  ASSERT_TRUE(kubelet->wait_for_allocatable("nvidia.com/gpu", 7, kPatience));
  open_client();
  const auto empty = list_on_loop();
  ASSERT_TRUE(empty) << empty.error().full_message();
  EXPECT_TRUE(empty->empty());

  const auto grant =
      kubelet->admit_pod({"team", "trainer", "", {{"main", {{"nvidia.com/gpu", 2}}}, {"side", {}}}});
  ASSERT_TRUE(grant) << grant.error().full_message();
  const ResourceName gpu("nvidia.com/gpu");
  for (int round = 0; round < 2; ++round) {
    const auto listed = list_on_loop();
    ASSERT_TRUE(listed) << listed.error().full_message();
    ASSERT_EQ(listed->size(), 1u);
    const auto& held = listed->front();
    EXPECT_EQ(held.pod.name_space, "team");
    EXPECT_EQ(held.pod.name, "trainer");
    EXPECT_EQ(held.container, "main");
    std::set<std::string> ids;
    for (const auto& id : held.devices.at(gpu)) ids.insert(id.str());
    const auto& given = grant->containers[0].devices.at("nvidia.com/gpu");
    EXPECT_EQ(ids, std::set(given.begin(), given.end()));
    const auto pods = pods_by_device(*listed);
    ASSERT_EQ(pods.size(), 2u);
    for (const auto& id : given) EXPECT_EQ(pods.at(DeviceId(id)), "team/trainer");

    const auto all = allocatable();
    ASSERT_TRUE(all) << all.error().full_message();
    ASSERT_EQ(all->at(gpu).size(), 7u);
    EXPECT_EQ(all->at(gpu).front().str(), gpu_uuid(1));
    ASSERT_TRUE(kubelet->restart_kubelet());  // which breaks the kept connection
    ASSERT_TRUE(kubelet->wait_for_allocatable("nvidia.com/gpu", 7, kPatience));
  }
}

TEST_F(PodResourcesTest, MissingKubeletIsUnavailable) {
  open_client();
  const auto absent = list_on_loop();
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), Code::kUnavailable);
  ASSERT_TRUE(make_directories(directory_.directory_path() + "/pod-resources"));
  const auto bound = bind_unix_socket(directory_.directory_path() + "/pod-resources/kubelet.sock");
  ASSERT_TRUE(bound);
  const auto refused = allocatable();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnavailable);
}

TEST_F(PodResourcesTest, SilentKubeletTimesOut) {
  ASSERT_TRUE(make_directories(directory_.directory_path() + "/pod-resources"));
  const std::string path = directory_.directory_path() + "/pod-resources/kubelet.sock";
  const auto silent = bind_unix_socket(path);
  ASSERT_TRUE(silent);
  ASSERT_TRUE(start_listening(*silent, path));
  open_client(50ms);
  const auto late = list_on_loop();
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), Code::kDeadlineExceeded);
}

TEST_F(PodResourcesTest, NoCallbackAfterDestruction) {
  ASSERT_TRUE(make_directories(directory_.directory_path() + "/pod-resources"));
  const std::string path = directory_.directory_path() + "/pod-resources/kubelet.sock";
  const auto silent = bind_unix_socket(path);
  ASSERT_TRUE(silent);
  ASSERT_TRUE(start_listening(*silent, path));
  open_client();
  bool called = false;
  thread_.run_on_loop([&] {
    client_->list_containers([&](const auto&) { called = true; });
    client_.reset();
  });
  thread_.run_on_loop([] {});
  EXPECT_FALSE(called);
}

}  // namespace
}  // namespace gpulet::device_plugin
