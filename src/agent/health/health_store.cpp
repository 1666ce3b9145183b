#include "agent/health/health_store.h"

#include "base/log.h"

namespace gpulet::agent {
namespace {

constexpr std::uint64_t kSaveSeed = 61;

}  // namespace

HealthFileStore::HealthFileStore(Loop& loop, std::string path)
    : loop_(loop), path_(std::move(path)), relay_(std::make_shared<LoopRelay>(loop)) {}

HealthFileStore::~HealthFileStore() { relay_->close_relay(); }

void HealthFileStore::change_path(std::string path) { path_ = std::move(path); }

Result<health::PersistedState> HealthFileStore::load_state() {
  if (last_) return *last_;
  if (path_.empty()) return health::PersistedState{};
  return health::read_persisted_state(path_);
}

void HealthFileStore::save_state(const health::PersistedState& saved, std::function<void(Status)> done) {
  last_ = saved;
  const auto answer = [alive = lifetime_.watch(), done = std::move(done)](Status status) {
    if (!!alive) done(std::move(status));
  };
  if (path_.empty()) return loop_.post([answer] { answer({}); });
  const auto started = start_detached_thread("the health state", [relay = relay_, path = path_, saved,
                                                                  answer] {
    relay->post_to_loop([answer, status = health::write_persisted_state(path, saved)] { answer(status); });
  });
  if (!started) loop_.post([answer, started] { answer(started); });
}

Status HealthFileStore::save_state_now(const health::PersistedState& saved) {
  last_ = saved;
  return path_.empty() ? Status() : health::write_persisted_state(path_, saved);
}

std::string HealthFileStore::current_boot_id() { return health::read_boot_id().value_or(""); }

HealthStateSaver::HealthStateSaver(Loop& loop, HealthStore* store, health::HealthStateMachine& machine,
                                   std::function<void()> changed)
    : loop_(loop),
      store_(store),
      machine_(machine),
      changed_(std::move(changed)),
      backoff_(kSaveBackoff, kSaveSeed) {}

HealthStateSaver::~HealthStateSaver() {
  if (store_ == nullptr || machine_.revision() == saved_revision_) return;
  if (const auto status = store_->save_state_now(state_to_save()); !status && !save_error_) {
    log::warning("cannot save the health state", status.error());
  }
}

void HealthStateSaver::restore_machine() {
  if (store_ == nullptr) return;
  boot_id_ = store_->current_boot_id();
  const auto saved = store_->load_state();
  if (!saved) {
    // Faults that persist are seen again.
    log::warning("cannot read the saved health state; starting without it", saved.error());
  } else {
    machine_.restore_state(*saved, boot_id_, {loop_.now(), loop_.wall_now()});
  }
  saved_revision_ = machine_.revision();
}

void HealthStateSaver::save_if_changed() {
  if (store_ == nullptr || timer_ || writing_ || machine_.revision() == saved_revision_) return;
  timer_ = loop_.after(kSaveDelay, [this] { save_machine(); });
}

void HealthStateSaver::save_machine() {
  timer_.reset();
  writing_ = true;
  const auto revision = machine_.revision();
  store_->save_state(state_to_save(), [this, revision, alive = lifetime_.watch()](const Status& status) {
    if (!alive) return;
    writing_ = false;
    if (status) {
      saved_revision_ = revision;
      backoff_.reset();
      if (std::exchange(save_error_, std::nullopt)) {
        log::info("the health state is saved again");
        if (changed_) changed_();
      }
      return save_if_changed();
    }
    if (!std::exchange(save_error_, status.error())) {
      log::warning("cannot write the health state file; retrying", status.error());
      if (changed_) changed_();
    }
    timer_ = loop_.after(backoff_.next_delay(), [this] { save_machine(); });
  });
}

health::PersistedState HealthStateSaver::state_to_save() const {
  return machine_.to_persisted_state({loop_.now(), loop_.wall_now()}, boot_id_);
}

}  // namespace gpulet::agent
