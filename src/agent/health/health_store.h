// Persists the faults of the node's GPUs: where (HealthStore), and when (HealthStateSaver).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "health/state/persisted_state.h"
#include "health/state/state_machine.h"

namespace gpulet::agent {

// Its name in gpulet.stateDir.
inline constexpr const char* kHealthStateFile = "health-state";
// Delay from a change to its write; changes within it are written once.
inline constexpr Duration kSaveDelay = std::chrono::milliseconds(100);
// Retry of a failed write.
inline constexpr BackoffLimits kSaveBackoff{std::chrono::seconds(1), std::chrono::minutes(5)};

// Where faults are persisted. Loop's thread only; callbacks come there, none after destruction.
class HealthStore {
 public:
  virtual ~HealthStore() = default;
  // The state saved last, also by an earlier process; empty if there is none. Errors: those of
  // read_persisted_state.
  virtual Result<health::PersistedState> load_state() = 0;
  // Never blocks. The caller waits for `done` before the next call.
  virtual void save_state(const health::PersistedState& saved, std::function<void(Status)> done) = 0;
  // Blocks; for shutdown.
  virtual Status save_state_now(const health::PersistedState& saved) = 0;
  // The id of this boot; empty if the kernel does not report it.
  virtual std::string current_boot_id() = 0;
};

// The file of persisted_state.h, read once and written on a thread of its own, as a disk may hang. With an
// empty `path` the state is kept in memory only.
class HealthFileStore final : public HealthStore {
 public:
  HealthFileStore(Loop& loop, std::string path);
  ~HealthFileStore() override;
  // Saves to `path` from now on; the state in memory is kept.
  void change_path(std::string path);

  Result<health::PersistedState> load_state() override;
  void save_state(const health::PersistedState& saved, std::function<void(Status)> done) override;
  Status save_state_now(const health::PersistedState& saved) override;
  std::string current_boot_id() override;

 private:
  Loop& loop_;
  std::string path_;
  std::optional<health::PersistedState> last_;
  std::shared_ptr<LoopRelay> relay_;
  Lifetime lifetime_;
};

// Restores a HealthStateMachine once, then saves it shortly after each change. A failed save is retried with
// backoff and logged once.
class HealthStateSaver {
 public:
  // `store` may be null: then nothing is persisted. Both outlive it. `changed` is called when saving begins
  // to fail and when it works again; may be empty.
  HealthStateSaver(Loop& loop, HealthStore* store, health::HealthStateMachine& machine,
                   std::function<void()> changed = nullptr);
  ~HealthStateSaver();
  HealthStateSaver(const HealthStateSaver&) = delete;

  // Once, before the machine's first snapshot.
  void restore_machine();
  // After each round.
  void save_if_changed();
  // Why the newest state is not on disk yet; nullopt if nothing has failed.
  const std::optional<Error>& save_error() const { return save_error_; }

 private:
  void save_machine();
  health::PersistedState state_to_save() const;

  Loop& loop_;
  HealthStore* store_;
  health::HealthStateMachine& machine_;
  std::function<void()> changed_;
  std::string boot_id_;
  std::uint64_t saved_revision_ = 0;  // the machine's revision on disk
  bool writing_ = false;
  std::optional<Error> save_error_;
  Backoff backoff_;
  Subscription timer_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
