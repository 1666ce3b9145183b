// A node that serves claims, in memory: simulated GPUs, an API server, a scheduler, a kubelet and the device
// plugin's Pods around the real controller of claims, pool of devices, plan of slices and switch of offers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>  // tidy: heavy-header because claims are kept as JSON

#include "base/loop.h"
#include "dra/claim_controller.h"
#include "dra/resource_slice.h"
#include "dra/slice_publisher.h"
#include "mig/test_hardware.h"
#include "partition/offer_switch.h"
#include "tests/seeded/world.h"

namespace gpulet::seeded {

inline constexpr unsigned kHoldingProcess = 4711;
inline constexpr std::size_t kDynamicGpu = 0, kStaticGpu = 1, kSharedGpu = 2;  // the others are whole

// Calls the simulated driver from the loop, for one process of the agent.
class StormPartitions final : public dra::ClaimPartitions {
 public:
  StormPartitions(Loop& loop, mig::SimHardware& gpu) : loop_(loop), gpu_(gpu) {}

  void find_partition(const DeviceUuid& gpu, const dra::Partition& partition,
                      std::function<void(Result<DeviceUuid>)> done) override;
  void make_partition(const DeviceUuid& gpu, const dra::Partition& partition, bool resumes,
                      std::function<void(Result<DeviceUuid>)> done) override;
  void remove_partition(const DeviceUuid& gpu, const dra::Partition& partition, const DeviceUuid& uuid,
                        std::function<void(Status)> done) override;
  // What was asked is not answered.
  void restart_calls() { ++*session_; }

  bool driver_answers = true;
  std::size_t fault_at = mig::kNever;  // the changing call, counted over all of them
  mig::FailingHardware::How how = mig::FailingHardware::How::kDieBefore;
  bool is_dead = false;
  std::set<DeviceUuid> removed;  // MIG devices that a snapshot may still have
  std::function<void()> changed;

 private:
  template <class Answer>
  void run(std::function<Answer(mig::Hardware&)> work, std::function<void(Answer)> done);
  Loop& loop_;
  mig::SimHardware& gpu_;
  std::size_t changes_ = 0;
  // Of the calls that will be answered; outlives this.
  std::shared_ptr<std::uint64_t> session_ = std::make_shared<std::uint64_t>(0);
  Lifetime lifetime_;
};

class ClaimWorld {
 public:
  // `gpu` is emptied; its machine has MIG on.
  ClaimWorld(std::uint64_t seed, mig::SimHardware& gpu);
  ~ClaimWorld();
  ClaimWorld(const ClaimWorld&) = delete;

  void random_step();
  // Everything that is down comes up, and every claim ends.
  void end_everything();
  void expect_invariants();
  void expect_nothing_left();

  // What has happened, for the report of a storm.
  std::map<std::string, std::size_t> counts;

 private:
  struct Source;
  struct NoDaemons;
  struct Claim {
    std::string name, uid;
    nlohmann::json object;
    bool exists = true;  // on the API server
    std::optional<dra::PreparedClaim> prepared{};
    std::map<std::string, DeviceUuid> uuids{};  // by CDI name, when it was prepared
  };

  std::size_t any(std::size_t below) { return random_() % below; }
  bool chance(std::size_t one_in) { return any(one_in) == 0; }

  void change_claims(std::size_t step);
  void change_node(std::size_t step);
  void start();
  void restart(bool runs_tasks);
  void restart_unchanged();
  void damage_record();
  void update_devices();
  void publish();
  bool is_shown(const std::vector<dra::ResourceSlice>& shown) const;
  void read_gpus() { seen_ = current_state(); }
  mig::State current_state() const;
  void settle();

  void schedule_claim();
  bool schedule_devices(std::vector<nlohmann::json>& results);
  void prepare(const std::vector<Claim*>& claims);
  void unprepare(const std::vector<Claim*>& claims);
  void on_answer(const std::map<std::string, Result<dra::PreparedClaim>>& answers);
  void delete_claim(Claim& claim);
  void block(const std::string& directory, bool blocked);
  void toggle_foreign();
  void toggle_holder();
  void toggle_plugin_pod();
  Claim* any_claim();

  void expect_claims_keep_devices();
  void expect_each_device_once();
  void expect_sides_apart();
  void expect_instances_owned();
  void expect_slices_of_state();
  std::set<DeviceUuid> instances() const;
  // "name inode" of each record and CDI document.
  std::set<std::string> files() const;

  Random random_;
  mig::SimHardware& gpu_;
  ManualLoop loop_;
  std::string directory_;
  std::unique_ptr<Source> source_;
  std::unique_ptr<NoDaemons> daemons_;
  std::unique_ptr<StormPartitions> partitions_;
  std::unique_ptr<dra::ClaimController> controller_;
  std::optional<Lifetime> process_;

  // The node.
  std::vector<inventory::Gpu> gpus_;
  mig::State seen_;  // of GPU 0, by the newest snapshot
  std::map<DeviceUuid, std::vector<dra::DeviceTaint>> taints_;
  std::map<DeviceUuid, config::OfferSide> sides_;
  bool shares_ = true;
  partition::OfferSwitch offers_;
  Time started_{};
  std::set<std::string> blocked_;
  std::optional<unsigned> holder_;  // the process that holds an instance
  std::set<DeviceUuid> foreign_;    // of other programs, or whose record was damaged
  std::map<DeviceUuid, std::string> plugin_pods_;

  // The cluster.
  bool api_up_ = true, synced_ = true;
  std::map<std::string, dra::ResourceSlice> slices_, shown_;  // of the API server; as the process knows them
  dra::DevicePool pool_;
  bool publishes_ = false;
  std::size_t slice_writes_ = 0, next_claim_ = 0;
  std::map<std::string, Claim> claims_;  // by uid; also those that are gone
  std::size_t open_calls_ = 0;
};

}  // namespace gpulet::seeded
