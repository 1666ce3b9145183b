#include "dra/slice_publisher.h"

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "dra/test_machines.h"
#include "dra/test_slice_store.h"
#include "k8s/test_api.h"

namespace gpulet::dra {
namespace {

using namespace std::chrono_literals;
using k8s::eventually;
using nlohmann::json;
using test::SliceStore;

class SlicePublisherTest : public k8s::ApiTest {
 protected:
  void release_source() override { publisher_.reset(); }
  void begin() {
    if (!server_) {
      start_server([this](const k8s::Received& request) { return store_.handle(request); });
    }
    call_on_loop([this] {
      publisher_.reset();
      publisher_ = SlicePublisher::start_publisher(
          loop_, client_config(), {"gpu.nvidia.com", "node-1", "node-1"},
          {.sending = {10s, {10ms, 100ms}}, .watching = {.backoff = {10ms, 100ms}}}, [this] { ++changes_; });
    });
  }
  static std::vector<Device> devices(unsigned count, std::optional<unsigned> tainted = std::nullopt) {
    std::vector<inventory::Gpu> gpus;
    for (unsigned i = 0; i < count; ++i) gpus.push_back(test::make_gpu(i));
    std::vector<Device> all;
    for (const auto& offered : test::make_pool(gpus).devices) all.push_back(offered.device);
    if (tainted) all[*tainted].taints = {{"gpu.nvidia.com/xid", "79", TaintEffect::kNoSchedule}};
    return all;
  }
  static void share(Device& device) {
    device.allows_multiple = true;
    device.capacity = {{"memory", 8}, {"shares", 4}};
    device.policies = {{"shares", {.standard = 1, .min = 1, .max = 4, .step = 1}}};
  }
  void publish(std::vector<Device> all, std::vector<CounterSet> sets = {}) {
    call_on_loop([&] { publisher_->set_devices(std::move(all), std::move(sets)); });
  }
  bool is_settled() {
    bool settled = false;
    call_on_loop([&] { settled = publisher_->is_settled(); });
    return settled;
  }
  bool becomes_settled() {
    return eventually([this] { return is_settled(); });
  }
  bool settles(const std::string& names) {
    return eventually([&] {
      if (store_.devices() != names) return false;
      bool idle = false;
      call_on_loop([&] { idle = shown_names() == names; });
      return idle;
    });
  }
  std::string shown_names() const {
    std::string text;
    for (const auto& slice : publisher_->shown_slices()) {
      for (const auto& device : slice.devices) {
        text += (text.empty() ? "" : " ") + device.name + (device.taints.empty() ? "" : "!");
      }
    }
    return text;
  }

  SliceStore store_;
  std::atomic<int> changes_{0};
  std::unique_ptr<SlicePublisher> publisher_;
};

constexpr const char* kFirstSlice = "00000-gpu.nvidia.com-node-1";

TEST_F(SlicePublisherTest, PublishesAndFollows) {
  begin();
  publish(devices(2));
  EXPECT_TRUE(settles("gpu-0 gpu-1"));
  EXPECT_EQ(store_.writes(), 1);
  publish(devices(2, 1));
  EXPECT_TRUE(settles("gpu-0 gpu-1!"));
  publish(devices(2));
  EXPECT_TRUE(settles("gpu-0 gpu-1"));
  EXPECT_EQ(store_.writes(), 3);
  call_on_loop([this] {
    EXPECT_EQ(shown_uuids(publisher_->shown_slices()),
              (std::map<std::string, std::string>{{"gpu-0", "GPU-0"}, {"gpu-1", "GPU-1"}}));
  });
  EXPECT_GT(changes_, 0);
  call_on_loop([this] { publisher_->remove_slices(); });
  EXPECT_TRUE(eventually([this] { return store_.size() == 0; }));
}

// What is in no slice any more is offered by the device plugin: only what the API server has acknowledged
// counts.
TEST_F(SlicePublisherTest, IsSettledWhenTheServerHasAcknowledgedTheDevices) {
  begin();
  call_on_loop([this] { EXPECT_FALSE(publisher_->is_settled()) << "no list yet"; });
  EXPECT_TRUE(becomes_settled()) << "nothing to write";
  publish(devices(2));
  EXPECT_TRUE(becomes_settled());
  EXPECT_EQ(store_.devices(), "gpu-0 gpu-1");
  store_.status = 500;
  const int before = store_.writes();
  publish(devices(1));
  EXPECT_FALSE(is_settled());
  EXPECT_TRUE(eventually([&] { return store_.writes() > before; }));
  EXPECT_FALSE(is_settled()) << "the write failed";
  store_.status = 0;
  EXPECT_TRUE(becomes_settled());
  EXPECT_EQ(store_.devices(), "gpu-0");
  call_on_loop([this] { EXPECT_EQ(shown_gpus(publisher_->shown_slices()), std::set{DeviceUuid("GPU-0")}); });
  call_on_loop([this] { publisher_->remove_slices(); });
  EXPECT_FALSE(is_settled() && store_.size() != 0);
  EXPECT_TRUE(becomes_settled());
  EXPECT_EQ(store_.size(), 0u);
}

TEST(ShownGpus, AMigDeviceShowsItsGpu) {
  ResourceSlice slice;
  for (const auto& offered : test::make_pool({test::make_gpu(0), test::make_partitioned_gpu(1, 2)}).devices)
    slice.devices.push_back(offered.device);
  EXPECT_EQ(shown_gpus({slice}), (std::set{DeviceUuid("GPU-0"), DeviceUuid("GPU-1")}));
}

TEST_F(SlicePublisherTest, ARestartWritesNothing) {
  begin();
  publish(devices(2));
  EXPECT_TRUE(settles("gpu-0 gpu-1"));
  begin();
  publish(devices(2));
  EXPECT_TRUE(settles("gpu-0 gpu-1"));
  // A change is the proof that it got beyond its first look.
  publish(devices(3));
  EXPECT_TRUE(settles("gpu-0 gpu-1 gpu-2"));
  EXPECT_EQ(store_.writes(), 2);
}

TEST_F(SlicePublisherTest, RepairsWhatOthersDo) {
  begin();
  publish(devices(2));
  EXPECT_TRUE(settles("gpu-0 gpu-1"));
  store_.remove(kFirstSlice);
  EXPECT_TRUE(eventually([this] { return store_.writes() == 2; }));
  EXPECT_TRUE(settles("gpu-0 gpu-1"));
  store_.change(kFirstSlice, [](json& object) { object["spec"]["devices"].erase(0); });
  EXPECT_TRUE(eventually([this] { return store_.writes() >= 3; }));
  EXPECT_TRUE(settles("gpu-0 gpu-1"));
}

// The watch and the answer come on two connections.
TEST_F(SlicePublisherTest, RepairsADeletionThatTheWatchShowsBeforeTheAnswer) {
  store_.before_answer = [this] {
    EXPECT_TRUE(eventually([this] { return changes_ >= 2; }));  // the first list, and the slice
    const int before = changes_;
    store_.remove(kFirstSlice);
    EXPECT_TRUE(eventually([&] { return changes_ > before; }));
  };
  begin();
  EXPECT_TRUE(eventually([this] { return store_.watches > 0; }));
  publish(devices(2));
  EXPECT_TRUE(eventually([this] { return store_.writes() == 2; }));
  EXPECT_TRUE(settles("gpu-0 gpu-1"));
}

TEST_F(SlicePublisherTest, LeavesSickDevicesOutWhereTaintsAreDropped) {
  store_.drops_taints = true;
  begin();
  publish(devices(3, 1));
  EXPECT_TRUE(settles("gpu-0 gpu-2"));
  publish(devices(3));
  EXPECT_TRUE(settles("gpu-0 gpu-1 gpu-2"));
}

TEST_F(SlicePublisherTest, OffersNoPartitionsWhereCountersAreDroppedOrRefused) {
  const std::vector<CounterSet> sets = {{"gpu-1-counter-set", {{"memory", 2}}}};
  auto all = devices(3);
  all[1].consumes = {{"gpu-1-counter-set", {{"memory", 1}}}};
  begin();
  publish(all, sets);
  EXPECT_TRUE(settles("gpu-0 gpu-1 gpu-2"));
  EXPECT_EQ(store_.size(), 2u);
  for (auto* const fault : {&store_.drops_counters, &store_.refuses_counters}) {
    call_on_loop([this] { publisher_->remove_slices(); });
    EXPECT_TRUE(eventually([this] { return store_.size() == 0; }));
    *fault = true;
    begin();
    publish(all, sets);
    EXPECT_TRUE(settles("gpu-0 gpu-2"));
    EXPECT_EQ(store_.size(), 1u);
    *fault = false;
  }
}

TEST_F(SlicePublisherTest, OffersWholeGpusWhereSharesAreDropped) {
  auto all = devices(2);
  share(all[1]);
  const auto shown = [this] {
    Device second;
    call_on_loop([&] {
      for (const auto& slice : publisher_->shown_slices()) second = slice.devices.back();
    });
    return second;
  };
  begin();
  publish(all);
  EXPECT_TRUE(settles("gpu-0 gpu-1"));
  EXPECT_EQ(shown(), all[1]);
  call_on_loop([this] { publisher_->remove_slices(); });
  EXPECT_TRUE(eventually([this] { return store_.size() == 0; }));
  store_.drops_shares = true;
  begin();
  publish(all);
  EXPECT_TRUE(settles("gpu-0 gpu-1"));
  EXPECT_TRUE(eventually([&] { return !shown().capacity.contains("shares"); }));
  EXPECT_FALSE(shown().allows_multiple);
  EXPECT_EQ(shown().capacity, (std::map<std::string, std::uint64_t>{{"memory", 8}}));
  const int writes = store_.writes();
  publish(all);
  EXPECT_TRUE(settles("gpu-0 gpu-1"));
  EXPECT_EQ(store_.writes(), writes) << "nothing is tried again";
}

// A cluster's feature gates change with a restart of its API server.
TEST_F(SlicePublisherTest, UsesAGateThatIsOnWhenTheApiServerIsBack) {
  auto all = devices(4, 1);
  all[2].consumes = {{"gpu-2-counter-set", {{"memory", 1}}}};
  share(all[3]);
  const std::vector<CounterSet> sets = {{"gpu-2-counter-set", {{"memory", 2}}}};
  store_.drops_taints = store_.drops_counters = store_.drops_shares = true;
  begin();
  publish(all, sets);
  EXPECT_TRUE(settles("gpu-0 gpu-3"));
  EXPECT_TRUE(becomes_settled());
  EXPECT_EQ(store_.dry_runs, 0);

  const int writes = store_.writes();
  store_.ends_watches = true;
  EXPECT_TRUE(eventually([this] { return store_.dry_runs > 0; })) << "the gates may be on";
  EXPECT_TRUE(settles("gpu-0 gpu-3"));
  EXPECT_EQ(store_.writes(), writes) << "they are not";

  store_.drops_taints = store_.drops_counters = store_.drops_shares = false;
  store_.ends_watches = true;
  EXPECT_TRUE(settles("gpu-0 gpu-1! gpu-2 gpu-3"));
  EXPECT_TRUE(becomes_settled());
  call_on_loop([this] {
    const auto slices = publisher_->shown_slices();
    EXPECT_EQ(slices.size(), 2u) << "one of them with the counters";
    EXPECT_TRUE(std::ranges::any_of(slices, [](const auto& slice) { return !slice.counter_sets.empty(); }));
    EXPECT_TRUE(std::ranges::any_of(slices, [](const auto& slice) {
      return !slice.devices.empty() && slice.devices.back().allows_multiple;
    }));
  });
  const int asked = store_.dry_runs;
  store_.ends_watches = true;
  publish(devices(1));
  EXPECT_TRUE(settles("gpu-0"));
  EXPECT_EQ(store_.dry_runs, asked) << "nothing is dropped";
}

// Nothing shows what the server keeps; the next fault does.
TEST_F(SlicePublisherTest, AsksNothingWhereNoDeviceNeedsTheGate) {
  store_.drops_taints = true;
  begin();
  publish(devices(3, 1));
  EXPECT_TRUE(settles("gpu-0 gpu-2"));
  publish(devices(3));
  EXPECT_TRUE(settles("gpu-0 gpu-1 gpu-2"));
  store_.drops_taints = false;
  const int watches = store_.watches;
  store_.ends_watches = true;
  EXPECT_TRUE(eventually([&] { return store_.watches > watches; }));
  publish(devices(3, 1));
  EXPECT_TRUE(settles("gpu-0 gpu-1! gpu-2"));
  EXPECT_EQ(store_.dry_runs, 0);
}

TEST_F(SlicePublisherTest, TriesAgainWhenTheServerRefuses) {
  store_.status = 403;
  begin();
  publish(devices(1));
  EXPECT_TRUE(eventually([this] { return store_.writes() > 2; }));
  call_on_loop([this] {
    EXPECT_NE(publisher_->publisher_status().error.find("create on resourceslices"), std::string::npos)
        << publisher_->publisher_status().error;
  });
  store_.status = 0;
  EXPECT_TRUE(settles("gpu-0"));
}

TEST_F(SlicePublisherTest, WritesNothingBeforeItKnowsTheDevices) {
  begin();
  EXPECT_TRUE(eventually([this] { return changes_ > 0; }));
  EXPECT_EQ(store_.writes(), 0);
}

}  // namespace
}  // namespace gpulet::dra
