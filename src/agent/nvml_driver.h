// The driver as the agent sees it, over NVML: every call on the worker with its deadline, the wait for events
// on its own thread, and all state on the loop. One GPU that hangs or is lost leaves the others whole.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/driver_events.h"
#include "agent/ports.h"
#include "inventory/read.h"
#include "nvml/session.h"
#include "nvml/worker.h"

namespace gpulet::agent {

struct NvmlDriverOptions {
  std::string driver_root = "/driver-root";  // --driver-root-ctr-path
  // Folders that have a sys/: the PCI devices' NUMA nodes are read there. Empty: the driver root, then "/".
  std::vector<std::string> sys_roots{};
  Duration call_timeout = std::chrono::seconds(10);  // of reading or probing one GPU, of the initialisation
  bool events = true;
};

// A reading does not wait longer than this for a GPU: it is in the snapshot as unreadable, and when it
// answers after all, `changed` says so. The first time a GPU may have to be woken up, which takes seconds.
inline constexpr Duration kReadPatience = std::chrono::seconds(1);
inline constexpr Duration kFirstReadPatience = std::chrono::seconds(5);
// How long an initialisation waits for the event thread to let go of the driver before it.
inline constexpr std::chrono::milliseconds kReleaseGrace{250};

class NvmlDriver final : public Driver {
 public:
  using SessionPtr = std::shared_ptr<const nvml::Session>;

  NvmlDriver(Loop& loop, NvmlDriverOptions options);
  ~NvmlDriver() override;

  // Errors: kUnavailable: no driver (yet), or one that has gone; kUnsupported: older than
  // nvml::kOldestDriver; kDeadlineExceeded, kPermissionDenied. May be tried any number of times.
  void open(std::function<void(Status)> done) override;
  void read(std::function<void(Result<inventory::Snapshot>)> done) override;
  void ask(DeviceUuid gpu, std::function<void(Evidence)> done) override;
  void poll(health::Scope scope, std::function<void(Evidence)> done) override;
  void set_events(Events events) override;
  // Who is told of the XIDs of events too, before set_events' handler.
  using OnXid = std::function<void(const health::Scope&, std::uint64_t code)>;
  void set_on_xid(OnXid on_xid) { on_xid_ = std::move(on_xid); }

  // Makes `work` about a GPU on the driver's thread, with its index as NVML counts; `what` is for errors:
  // "changing MIG of". Errors beside work's own: kNotFound (no such GPU at the last reading), kUnavailable,
  // kDeadlineExceeded.
  template <class T>
  void about(const DeviceUuid& gpu, const std::string& what, Duration limit,
             std::function<Result<T>(const SessionPtr&, unsigned)> work,
             std::function<void(Result<T>)> done) {
    const auto* known = last_ ? last_->find(gpu) : nullptr;
    if (known == nullptr || !session_) {
      loop_.post([alive = std::weak_ptr(alive_), done = std::move(done), gpu] {
        if (!alive.expired()) done(fail(Code::kNotFound, "the driver knows no such GPU now", gpu.str()));
      });
      return;
    }
    auto call = about_gpu(what, known->index);
    call.deadline = limit;
    worker_.run<T>(
        std::move(call),
        [session = std::weak_ptr(session_), index = known->index, work = std::move(work)]() -> Result<T> {
          const auto held = session.lock();
          if (!held) return fail(Code::kUnavailable, "the driver is being initialised anew");
          return work(held, index);
        },
        std::move(done));
  }

  void set_call_timeout(Duration timeout) { options_.call_timeout = timeout; }
  std::size_t hanging_calls() const { return worker_.abandoned(); }
  const nvml::Worker& worker() const { return worker_; }  // for its counts

 private:
  using ReadDone = std::function<void(Result<inventory::Snapshot>)>;
  struct Reading;

  struct Answered;
  using Question = std::function<Evidence(const nvml::Session&, nvml::Device)>;
  // Puts the question about the scope's GPU, or MIG device, and looks whether it is still cut up as it was.
  void question(const health::Scope& scope, Question question, std::function<void(Evidence)> done);

  nvml::Call about_gpu(const std::string& what, unsigned index) const;
  void on_machine(const Result<inventory::Machine>& machine);
  void read_one(unsigned index);
  void on_gpu(const std::shared_ptr<Reading>& reading, unsigned index, Result<inventory::Gpu> gpu);
  void on_patience_over();
  void read_missing_distances();
  void finish_reading();
  void end_reading(Result<inventory::Snapshot> result);
  bool knows(unsigned index) const;
  void tell_changed();

  Loop& loop_;
  NvmlDriverOptions options_;
  SessionPtr session_;
  std::uint64_t generation_ = 0;
  std::optional<inventory::Snapshot> last_;
  inventory::Distances distances_;
  std::shared_ptr<Reading> reading_;
  std::deque<ReadDone> waiting_;
  OnXid on_xid_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  nvml::Worker worker_;  // goes before what its answers touch
  DriverEvents events_;
};

// Opens, reads once and lets go: for a command that needs no agent. Errors: as open() and read().
Result<inventory::Snapshot> read_snapshot(NvmlDriverOptions options);

}  // namespace gpulet::agent
