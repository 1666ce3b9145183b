// The Driver port over NVML: every call runs on the worker with a deadline, the wait for events has its own
// thread, and all state is on the loop. A GPU that hangs or is lost does not affect the others.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/driver/driver_events.h"
#include "agent/driver/session_holder.h"
#include "agent/node/ports.h"
#include "base/loop.h"
#include "inventory/snapshot_reader.h"
#include "nvml/events.h"
#include "nvml/session.h"
#include "nvml/worker.h"

namespace gpulet::agent {

struct NvmlDriverOptions {
  std::string driver_root = "/driver-root";  // --driver-root-ctr-path
  // Of the driver root, where its library is looked for before the known ones.
  std::vector<std::string> library_directories{};
  // Directories with a sys/, for the NUMA nodes of PCI devices. Empty: the driver root, then "/".
  std::vector<std::string> sys_roots{};
  Duration call_timeout =
      std::chrono::seconds(10);  // for reading or probing one GPU, and for the initialisation
  bool events = true;            // false with DriverHold::kOnDemand: nothing waits for events then
  config::DriverHold hold = config::DriverHold::kAlways;
};

// How long a reading waits for a GPU before the snapshot has it as unreadable; if it responds later,
// `changed` is called. The first time, the GPU may have to be woken up, which takes seconds.
inline constexpr Duration kReadTimeout = std::chrono::seconds(1);
inline constexpr Duration kFirstReadTimeout = std::chrono::seconds(5);
class NvmlDriver final : public Driver {
 public:
  using SessionPtr = SessionHolder::SessionPtr;

  NvmlDriver(Loop& loop, NvmlDriverOptions options);
  ~NvmlDriver() override;

  // Errors: kUnavailable: no driver (yet), or it was unloaded; kUnsupported: older than nvml::kOldestDriver;
  // kDeadlineExceeded, kPermissionDenied. May be retried any number of times.
  void open_driver(std::function<void(Status)> done) override;
  void close_driver(std::function<void(Status)> done) override;
  void read_snapshot(std::function<void(Result<inventory::Snapshot>)> done) override;
  void probe_gpu(DeviceUuid gpu, std::function<void(Evidence)> done) override;
  void poll_device(health::Scope scope, std::function<void(Evidence)> done) override;
  void set_events(Events events) override;
  // Also gets the XIDs of events, before the handler of set_events().
  using OnXid = std::function<void(const health::Scope&, std::uint64_t code)>;
  void set_on_xid(OnXid on_xid) { on_xid_ = std::move(on_xid); }

  // Runs `work` on the driver's thread with the NVML index of a GPU; `what` is for errors: "changing MIG of".
  // Errors beside those of `work`: kNotFound (not in the last snapshot), kUnavailable, kDeadlineExceeded.
  template <class T>
  void run_on_gpu(const DeviceUuid& gpu, const std::string& what, Duration limit,
                  std::function<Result<T>(const SessionPtr&, unsigned)> work,
                  std::function<void(Result<T>)> done) {
    run_in_session<T, unsigned>([=, this] { return find_gpu_call(gpu, what, limit); }, std::move(work),
                                std::move(done));
  }

  // The same for several GPUs by one call, which is watched as one: a GPU that hangs fails it for all. `work`
  // gets an index for each, nullopt where the last snapshot has no such GPU.
  using GpuIndices = std::vector<std::optional<unsigned>>;
  template <class T>
  void run_on_gpus(std::vector<DeviceUuid> gpus, const std::string& what, Duration limit,
                   std::function<Result<T>(const SessionPtr&, const GpuIndices&)> work,
                   std::function<void(Result<T>)> done) {
    run_in_session<T, GpuIndices>(
        [gpus = std::move(gpus), what, limit, this] { return find_gpus_call(gpus, what, limit); },
        std::move(work), std::move(done));
  }

  // Calls `work` every `interval` on the driver's thread (nvml::Worker::repeat_call) until it returns true or
  // the session is closed. Empty, and `ended` is not called: there is no session now, it is held on demand,
  // or the only GPU is not in the last snapshot.
  using RepeatedWork = std::function<bool(const nvml::Session&, const GpuIndices&)>;
  Subscription repeat_on_gpus(const std::vector<DeviceUuid>& gpus, const std::string& what, Duration interval,
                              RepeatedWork work, nvml::Worker::Ended ended);

  // As run_on_gpu(), while the agent has no other session, for what the driver refuses while any client holds
  // the GPU: calls for all GPUs wait meanwhile, so that none looks unreadable. Events of that time are lost;
  // the handler `changed` is called after it.
  template <class T>
  void run_alone_on_gpu(const DeviceUuid& gpu, const std::string& what, Duration limit,
                        std::function<Result<T>(const SessionPtr&, unsigned)> work,
                        std::function<void(Result<T>)> done) {
    auto call = find_gpu_call(gpu, what, limit);
    if (!call) {
      return loop_.post([alive = lifetime_.watch(), done = std::move(done), error = call.error()] {
        if (alive) done(fail(error));
      });
    }
    holder_.run_alone<T>(
        std::move(call->first), [this] { events_.stop_events(); },
        [index = call->second, work = std::move(work)](const SessionPtr& session) {
          return work(session, index);
        },
        [this, done = std::move(done)](Result<T> result) {
          notify_changed();
          done(std::move(result));
        });
  }

  // Runs `work` on the driver's thread while the agent has no session, as in run_alone_on_gpu(): for a
  // program that the driver serves only while no client holds the GPU. Errors beside those of `work`:
  // kUnavailable, kDeadlineExceeded after `limit`.
  template <class T>
  void run_closed(const std::string& what, Duration limit, std::function<Result<T>()> work,
                  std::function<void(Result<T>)> done) {
    holder_.run_closed<T>(
        {what, "driver", limit}, [this] { events_.stop_events(); }, std::move(work),
        [this, done = std::move(done)](Result<T> result) {
          notify_changed();
          done(std::move(result));
        });
  }

  void set_call_timeout(Duration timeout) { options_.call_timeout = timeout; }
  std::size_t hanging_calls() const { return worker_.abandoned(); }
  const nvml::Worker& worker() const { return worker_; }  // for its counts

 private:
  using ReadDone = std::function<void(Result<inventory::Snapshot>)>;
  struct Reading;

  struct ProbeResult;
  using Probe = std::function<Evidence(const nvml::Session&, nvml::Device)>;
  // Probes the GPU or MIG device of `scope`, and checks whether the GPU's MIG layout has changed.
  void run_probe(const health::Scope& scope, Probe question, std::function<void(Evidence)> done);

  // Runs `work` with what `find_call` has found once there is a session.
  template <class T, class Found>
  void run_in_session(std::function<Result<std::pair<nvml::Call, Found>>()> find_call,
                      std::function<Result<T>(const SessionPtr&, const Found&)> work,
                      std::function<void(Result<T>)> done) {
    holder_.use_session([this, find_call = std::move(find_call), work = std::move(work),
                         done = std::move(done)](const SessionPtr& session, const auto& use) mutable {
      auto call = find_call();
      if (!session || !call) {
        const auto error = session ? call.error() : holder_.closed_error();
        return loop_.post([alive = lifetime_.watch(), done = std::move(done), error] {
          if (alive) done(fail(error));
        });
      }
      worker_.run_call<T>(
          std::move(call->first),
          [session = std::weak_ptr(session), found = std::move(call->second),
           work = std::move(work)]() -> Result<T> {
            const auto held = session.lock();
            if (!held) return fail(Code::kUnavailable, "the driver is being initialised");
            return work(held, found);
          },
          [use, done = std::move(done)](Result<T> result) { done(std::move(result)); });
    });
  }

  // With the GPU's index. Errors: kNotFound.
  Result<std::pair<nvml::Call, unsigned>> find_gpu_call(const DeviceUuid& gpu, const std::string& what,
                                                        Duration limit) const;
  // With the index of each. A call for one GPU has that GPU as its subject.
  Result<std::pair<nvml::Call, GpuIndices>> find_gpus_call(const std::vector<DeviceUuid>& gpus,
                                                           const std::string& what, Duration limit) const;
  nvml::Call make_gpu_call(const std::string& what, unsigned index) const;
  void start_reading(const SessionPtr& session, const SessionHolder::Use& use, ReadDone done);
  void probe_with_session(const SessionPtr& session, const SessionHolder::Use& use,
                          const health::Scope& scope, Probe question, std::function<void(Evidence)> done);
  void report_no_events(const std::vector<inventory::Gpu>& gpus);
  void on_machine(const Result<inventory::DriverSummary>& machine);
  void read_one(unsigned index);
  void on_gpu(const std::shared_ptr<Reading>& reading, unsigned index, Result<inventory::Gpu> gpu);
  void on_reading_timeout();
  void read_missing_distances();
  void finish_reading();
  void end_reading(Result<inventory::Snapshot> result);
  bool has_read_gpu(unsigned index) const;
  void notify_changed();

  Loop& loop_;
  NvmlDriverOptions options_;
  std::uint64_t generation_ = 0;
  std::optional<inventory::Snapshot> last_snapshot_;
  inventory::DistanceCache distances_;
  std::shared_ptr<Reading> reading_;
  std::deque<ReadDone> waiting_reads_;
  std::set<DeviceUuid> valid_inforoms_;  // or absent ones, since the driver was opened and the last fault
  OnXid on_xid_;
  Lifetime lifetime_;
  nvml::Worker worker_;  // destroyed before what its results use
  SessionHolder holder_;
  DriverEvents events_;
};

// Opens the driver, reads one snapshot and closes it: for commands without an agent. Errors: those of
// open_driver() and read_snapshot().
Result<inventory::Snapshot> read_snapshot_once(NvmlDriverOptions options);

}  // namespace gpulet::agent
