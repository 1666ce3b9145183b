#include "agent/nvml_driver.h"

#include <algorithm>

#include "agent/health_readings.h"
#include "nvml/session.h"

namespace gpulet::agent {
namespace {

using inventory::Gpu;
using inventory::PcieDistance;
using WeakSession = std::weak_ptr<const nvml::Session>;

// Work holds the Session weakly while it is queued: what waits must not keep a driver that is to be opened
// anew.
Error session_gone() { return {Code::kUnavailable, "the driver is being initialised anew"}; }

// The handle of the GPU, or of its MIG device with these instances.
Result<nvml::Device> device_of(const nvml::Session& session, const health::Scope& scope, unsigned index) {
  GPULET_TRY_ASSIGN(const auto gpu, session.device(index));
  if (scope.whole()) return gpu;
  GPULET_TRY_ASSIGN(const unsigned count, session.max_mig_devices(gpu));
  for (unsigned i = 0; i < count; ++i) {
    const auto mig = session.mig_device(gpu, i);
    if (!mig && mig.error().code() == Code::kNotFound) continue;
    if (!mig) return fail(mig.error());
    GPULET_TRY_ASSIGN(const unsigned gpu_instance, session.gpu_instance_id(*mig));
    GPULET_TRY_ASSIGN(const unsigned compute_instance, session.compute_instance_id(*mig));
    if (gpu_instance == scope.gpu_instance && compute_instance == scope.compute_instance) return *mig;
  }
  return fail(Code::kNotFound, "the GPU has no such MIG device now", scope.gpu.str());
}

bool answers(const Driver::Evidence& evidence) {
  return std::ranges::all_of(evidence, [](const auto& one) {
    const auto* handle = std::get_if<health::HandleReading>(&one.body);
    return handle == nullptr || handle->answer == health::Answer::kAnswers;
  });
}

}  // namespace

// One reading under way. Each GPU has its own place; late ones are passed over.
struct NvmlDriver::Reading {
  WeakSession session;
  ReadDone done;
  inventory::DriverInfo driver;
  std::vector<std::optional<Gpu>> gpus;         // by NVML index
  std::size_t outstanding = 0;                  // of this phase
  std::vector<Gpu> settled;                     // once all are in, or late
  bool measuring = false;                       // the second phase: distances
  std::optional<inventory::Snapshot> finished;  // the third: its events are being registered
  Subscription patience;
};

NvmlDriver::NvmlDriver(Loop& loop, NvmlDriverOptions options)
    : loop_(loop), options_(std::move(options)), worker_(loop), events_(loop, worker_) {
  if (options_.sys_roots.empty()) options_.sys_roots = {options_.driver_root, "/"};
}

NvmlDriver::~NvmlDriver() {
  *alive_ = false;
  events_.stop();
}

nvml::Call NvmlDriver::about_gpu(const std::string& what, unsigned index) const {
  const std::string number = std::to_string(index);
  return {what + " GPU " + number, "gpu/" + number, options_.call_timeout};
}

void NvmlDriver::tell_changed() {
  if (events_.handlers().changed) events_.handlers().changed();
}

void NvmlDriver::open(std::function<void(Status)> done) {
  events_.stop();
  end_reading(fail(session_gone()));
  // A call that hangs keeps the Session for as long as it likes; waiting for it would be in vain.
  const auto patience = worker_.abandoned() == 0 ? kReleaseGrace : std::chrono::milliseconds(0);
  worker_.run<SessionPtr>(
      {"initialising the driver", "driver", options_.call_timeout + kReleaseGrace},
      [old = std::exchange(session_, nullptr), root = options_.driver_root, patience]() mutable {
        nvml::Session::close(std::exchange(old, nullptr), patience);
        return nvml::Session::open(root);
      },
      [this, done = std::move(done)](Result<SessionPtr> session) {
        if (!session) {
          done(fail(session.error()));
          return;
        }
        session_ = std::move(*session);
        worker_.forgive();
        done({});
      });
}

void NvmlDriver::set_events(Events events) {
  events.evidence = [this, evidence = std::move(events.evidence)](health::Evidence one) {
    const auto* xid = std::get_if<health::XidReport>(&one.body);
    if (xid != nullptr && on_xid_) on_xid_(one.scope, xid->code);
    if (evidence) evidence(std::move(one));
  };
  events_.set_handlers(std::move(events));
}

void NvmlDriver::read(ReadDone done) {
  if (!session_) {
    loop_.post([alive = std::weak_ptr(alive_), done = std::move(done)] {
      if (!alive.expired()) done(fail(Code::kUnavailable, "the driver is not initialised"));
    });
    return;
  }
  if (reading_) {
    waiting_.push_back(std::move(done));
    return;
  }
  reading_ = std::make_shared<Reading>();
  reading_->session = session_;
  reading_->done = std::move(done);
  worker_.run<inventory::Machine>(
      {"counting GPUs", "machine", options_.call_timeout},
      [session = reading_->session]() -> Result<inventory::Machine> {
        const auto held = session.lock();
        if (!held) return fail(session_gone());
        return inventory::read_machine(*held);
      },
      [this, reading = reading_](const Result<inventory::Machine>& machine) {
        if (reading == reading_) on_machine(machine);
      });
}

bool NvmlDriver::knows(unsigned index) const {
  return last_ && std::ranges::any_of(
                      last_->gpus, [&](const Gpu& gpu) { return gpu.index == index && !gpu.uuid.empty(); });
}

void NvmlDriver::on_machine(const Result<inventory::Machine>& machine) {
  if (!machine) {
    end_reading(fail(machine.error()));
    return;
  }
  reading_->driver = machine->driver;
  reading_->gpus.resize(machine->gpu_count);
  reading_->outstanding = machine->gpu_count;
  Duration patience = kReadPatience;
  for (unsigned index = 0; index < machine->gpu_count; ++index) {
    if (!knows(index)) patience = kFirstReadPatience;
    read_one(index);
  }
  if (machine->gpu_count == 0) {
    read_missing_distances();
  } else if (patience < options_.call_timeout) {
    reading_->patience = loop_.after(patience, [this] { on_patience_over(); });
  }
}

void NvmlDriver::read_one(unsigned index) {
  worker_.run<Gpu>(
      about_gpu("reading", index),
      [session = reading_->session, index, roots = options_.sys_roots]() -> Result<Gpu> {
        const auto held = session.lock();
        if (!held) return fail(session_gone());
        return inventory::read_gpu(*held, index, roots);
      },
      [this, reading = reading_, index](Result<Gpu> gpu) { on_gpu(reading, index, std::move(gpu)); });
}

void NvmlDriver::on_gpu(const std::shared_ptr<Reading>& reading, unsigned index, Result<Gpu> gpu) {
  if (reading != reading_ || reading->gpus[index]) {
    // Later than anybody waited for: it is worth another reading.
    if (session_ && !reading->session.expired() && gpu && !gpu->unreadable) tell_changed();
    return;
  }
  if (!gpu) {
    Gpu silent;
    silent.index = index;
    silent.unreadable = gpu.error();
    gpu = std::move(silent);
  }
  reading->gpus[index] = std::move(*gpu);
  if (--reading->outstanding == 0) read_missing_distances();
}

void NvmlDriver::on_patience_over() {
  if (reading_->finished) {
    end_reading(std::move(*reading_->finished));
    return;
  }
  if (reading_->measuring) {
    finish_reading();
    return;
  }
  for (unsigned index = 0; index < reading_->gpus.size(); ++index) {
    auto& gpu = reading_->gpus[index];
    if (gpu) continue;
    gpu.emplace();
    gpu->index = index;
    gpu->unreadable = Error(Code::kDeadlineExceeded,
                            "reading GPU " + std::to_string(index) + " has not returned from the driver yet");
  }
  read_missing_distances();
}

void NvmlDriver::read_missing_distances() {
  Reading& reading = *reading_;
  reading.measuring = true;
  reading.patience.reset();
  for (auto& gpu : reading.gpus) {
    // One that says the driver has gone speaks for all.
    if (gpu->unreadable && gpu->unreadable->code() == Code::kUnavailable) {
      end_reading(fail(*gpu->unreadable));
      return;
    }
    if (!inventory::is_display_only(*gpu)) reading.settled.push_back(std::move(*gpu));
  }
  if (last_) inventory::keep_known(reading.settled, *last_);

  reading.outstanding = 0;
  for (std::size_t from = 0; from < reading.settled.size(); ++from) {
    const auto places = distances_.missing(reading.settled, from);
    if (places.empty()) continue;
    std::vector<unsigned> to;
    std::vector<inventory::PciAddress> addresses;
    for (const auto place : places) {
      to.push_back(reading.settled[place].index);
      addresses.push_back(reading.settled[place].pci);
    }
    ++reading.outstanding;
    using Row = std::vector<std::optional<PcieDistance>>;
    worker_.run<Row>(
        about_gpu("measuring distances of", reading.settled[from].index),
        [session = reading.session, index = reading.settled[from].index, to]() -> Result<Row> {
          const auto held = session.lock();
          if (!held) return fail(session_gone());
          return inventory::read_distances(*held, index, to);
        },
        [this, held = reading_, here = reading.settled[from].pci, addresses](const Result<Row>& row) {
          for (std::size_t i = 0; row && i < addresses.size(); ++i) {  // late is as good as any
            if ((*row)[i]) distances_.learn(here, addresses[i], *(*row)[i]);
          }
          if (held == reading_ && --held->outstanding == 0) finish_reading();
        });
  }
  if (reading.outstanding == 0) {
    finish_reading();
  } else {
    reading.patience = loop_.after(kReadPatience, [this] { on_patience_over(); });
  }
}

void NvmlDriver::finish_reading() {
  inventory::Snapshot snapshot;
  snapshot.generation = ++generation_;
  snapshot.driver = reading_->driver;
  snapshot.gpus = std::move(reading_->settled);
  snapshot.pcie = distances_.matrix(snapshot.gpus);
  last_ = snapshot;
  if (!options_.events) {
    end_reading(std::move(snapshot));
    return;
  }
  // Told once the events of all that is in it are followed: an XID in between would be lost.
  reading_->finished = std::move(snapshot);
  reading_->patience = loop_.after(kReadPatience, [this] { on_patience_over(); });
  events_.watch(session_, reading_->finished->gpus, options_.call_timeout,
                [this, reading = std::weak_ptr(reading_)] {
                  if (const auto held = reading.lock(); held && held == reading_)
                    end_reading(std::move(*held->finished));
                });
}

void NvmlDriver::end_reading(Result<inventory::Snapshot> result) {
  const auto ended = std::exchange(reading_, nullptr);
  std::deque<ReadDone> waiting;
  // What was asked while this one ran may be about something later: it gets a reading of its own, all share
  // one.
  if (result) {
    waiting.swap(waiting_);
    if (!waiting.empty()) {
      read([waiting = std::move(waiting)](const Result<inventory::Snapshot>& next) {
        for (const auto& done : waiting) done(next);
      });
    }
  } else {
    waiting.swap(waiting_);
    for (const auto& done : waiting) {
      loop_.post([alive = std::weak_ptr(alive_), done, error = result.error()] {
        if (!alive.expired()) done(fail(error));
      });
    }
  }
  if (!ended) return;
  loop_.post([alive = std::weak_ptr(alive_), done = std::move(ended->done), result = std::move(result)] {
    if (!alive.expired()) done(result);
  });
}

struct NvmlDriver::Answered {
  Evidence evidence;
  std::string mig_layout;  // of a GPU; empty where it was not asked
};

void NvmlDriver::question(const health::Scope& scope, Question question, std::function<void(Evidence)> done) {
  const Time now = loop_.now();
  const Gpu* known = last_ ? last_->find(scope.gpu) : nullptr;
  if (known == nullptr || !session_) {
    const auto reading = session_ ? health::HandleReading{health::Answer::kLost, "no longer in the node"}
                                  : handle_of(session_gone());
    loop_.post([alive = std::weak_ptr(alive_), done = std::move(done),
                evidence = Evidence{{{scope.gpu}, now, reading}}] {
      if (!alive.expired()) done(evidence);
    });
    return;
  }
  const unsigned index = known->index;
  worker_.run<Answered>(
      about_gpu("asking", index),
      [session = WeakSession(session_), scope, index, question = std::move(question)]() -> Result<Answered> {
        const auto held = session.lock();
        if (!held) return fail(session_gone());
        GPULET_TRY_ASSIGN(const auto device, device_of(*held, scope, index));
        Answered answered{question(*held, device), {}};
        if (!scope.whole() || !answers(answered.evidence)) return answered;
        GPULET_TRY_ASSIGN(answered.mig_layout, inventory::mig_layout(*held, index));
        return answered;
      },
      [this, scope, now, done = std::move(done)](const Result<Answered>& answered) {
        const bool gone_device = !answered && !scope.whole() && answered.error().code() == Code::kNotFound;
        if (answered) {
          done(answered->evidence);
        } else if (gone_device) {
          done({});
        } else {
          done({{{scope.gpu}, now, handle_of(answered.error())}});
        }
        const Gpu* after = last_ ? last_->find(scope.gpu) : nullptr;
        if (!answered || after == nullptr || after->unreadable) return;
        // Not every driver tells of a new MIG layout by an event.
        const auto& layout = answered->mig_layout;
        if (!layout.empty() && layout != inventory::mig_layout(*after)) tell_changed();
      });
}

void NvmlDriver::ask(DeviceUuid gpu, std::function<void(Evidence)> done) {
  const health::Scope scope{gpu};
  question(
      scope,
      [scope, now = loop_.now()](const nvml::Session& session, nvml::Device device) {
        return ask_health(session, device, scope.gpu, now);
      },
      std::move(done));
}

void NvmlDriver::poll(health::Scope scope, std::function<void(Evidence)> done) {
  question(
      scope,
      [scope, now = loop_.now()](const nvml::Session& session, nvml::Device device) {
        return poll_health(session, device, scope, now);
      },
      std::move(done));
}

Result<inventory::Snapshot> read_snapshot(NvmlDriverOptions options) {
  options.events = false;
  EpollLoop loop;
  Result<inventory::Snapshot> result = fail(Code::kInternal, "the driver was not asked");
  NvmlDriver driver(loop, std::move(options));
  driver.open([&](const Status& opened) {
    if (!opened) {
      result = fail(opened.error());
      loop.stop();
      return;
    }
    driver.read([&](Result<inventory::Snapshot> snapshot) {
      result = std::move(snapshot);
      loop.stop();
    });
  });
  loop.run();
  return result;
}

}  // namespace gpulet::agent
