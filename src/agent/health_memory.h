// What the node remembers of its GPUs' faults beyond this process, and beyond an Agent that is built anew in
// it: a file (health/state_file.h) that is read once and written by a thread of its own, as a disk may hang.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/ports.h"
#include "base/backoff.h"
#include "base/loop.h"
#include "base/result.h"
#include "base/thread.h"
#include "health/machine.h"
#include "health/saved.h"

namespace gpulet::agent {

// The file's name in gpulet.stateDir.
inline constexpr const char* kHealthStateFile = "health-state";
// Changes of a moment are written once, so long after the first.
inline constexpr Duration kSaveDelay = std::chrono::milliseconds(100);
// A file that cannot be written is tried again within these.
inline constexpr BackoffLimits kSaveBackoff{std::chrono::seconds(1), std::chrono::minutes(5)};

// Loop's thread only; callbacks come there, none after destruction.
class HealthMemory {
 public:
  virtual ~HealthMemory() = default;
  // What was written last, by whatever process. Nothing known where nothing is. An error: as read_state.
  virtual Result<health::Saved> read() = 0;
  // Never blocks. One at a time: a second one before `done` is a mistake of the caller's.
  virtual void write(const health::Saved& saved, std::function<void(Status)> done) = 0;
  // Blocks: for the end.
  virtual Status write_now(const health::Saved& saved) = 0;
  // This boot's; empty where the kernel does not say.
  virtual std::string boot_id() = 0;
};

// `path` empty: kept in this process only.
class HealthFile final : public HealthMemory {
 public:
  HealthFile(Loop& loop, std::string path);
  ~HealthFile() override;
  // From now on there. What was read or written here is known still.
  void move_to(std::string path);

  Result<health::Saved> read() override;
  void write(const health::Saved& saved, std::function<void(Status)> done) override;
  Status write_now(const health::Saved& saved) override;
  std::string boot_id() override;

 private:
  Loop& loop_;
  std::string path_;
  std::optional<health::Saved> last_;
  std::shared_ptr<Relay> relay_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// Keeps a Machine's memory as the machine changes: restores it once, writes it soon after each change, again
// with a backoff when that fails, which is told once.
class HealthKeeper {
 public:
  // `memory` may be null: then nothing is kept. Both outlive it.
  HealthKeeper(Loop& loop, HealthMemory* memory, health::Machine& machine);
  ~HealthKeeper();
  HealthKeeper(const HealthKeeper&) = delete;

  // At the start, before the machine's first snapshot.
  void restore();
  // After each round.
  void look();

 private:
  void write();
  health::Saved saved() const;

  Loop& loop_;
  HealthMemory* memory_;
  health::Machine& machine_;
  std::string boot_id_;
  std::uint64_t kept_ = 0;  // the machine's revision that is written
  bool writing_ = false, failing_ = false;
  Backoff backoff_;
  Subscription timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpulet::agent
