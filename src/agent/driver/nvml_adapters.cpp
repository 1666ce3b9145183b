#include "agent/driver/nvml_adapters.h"

#include "mig/apply.h"
#include "mig/hardware.h"

namespace gpulet::agent {

void NvmlSampler::set_fields(std::set<metrics::Field> fields) {
  // Equal fields keep the readers and what they measure between two samples.
  if (fields == fields_) return;
  fields_ = std::move(fields);
  readers_.clear();
}

void NvmlSampler::sample_gpu(inventory::SnapshotPtr snapshot, std::size_t index, Time now, Done done) {
  const DeviceUuid uuid = snapshot->gpus[index].uuid;
  std::erase_if(readers_, [&](const auto& one) { return snapshot->find(one.first) == nullptr; });
  auto& idle_reader = readers_[uuid];
  auto reader =
      idle_reader ? std::exchange(idle_reader, nullptr) : std::make_shared<metrics::GpuReader>(fields_);
  driver_.run_on_gpu<Sampled>(
      uuid, "sampling", limit_,
      [reader, snapshot, index, now, proc = proc_](const NvmlDriver::SessionPtr& session,
                                                   unsigned) -> Result<Sampled> {
        Sampled sampled{reader->sample_gpu(*session, *snapshot, index, now.time_since_epoch()), {}};
        sampled.cgroups = metrics::read_cgroups(sampled.gpu, proc);
        metrics::read_process_names(sampled.gpu, proc);
        return sampled;
      },
      [this, alive = lifetime_.watch(), uuid, reader, done = std::move(done)](Result<Sampled> sampled) {
        if (!alive) return;
        // An abandoned call may use its reader forever.
        const bool back = sampled || sampled.error().code() != Code::kDeadlineExceeded;
        if (const auto at = readers_.find(uuid); back && at != readers_.end()) at->second = reader;
        done(std::move(sampled));
      });
}

template <class T>
void NvmlMigHardware::run_on_gpu(const DeviceUuid& gpu, const std::string& what, Duration limit,
                                 std::function<Result<T>(const NvmlDriver::SessionPtr&, unsigned)> work,
                                 std::function<void(Result<T>)> done) {
  auto* driver = driver_();
  if (driver == nullptr) {
    loop_.post(
        [done = std::move(done)] { done(fail(Code::kUnavailable, "the driver is being initialised")); });
    return;
  }
  driver->run_on_gpu<T>(gpu, what, limit, std::move(work), std::move(done));
}

void NvmlMigHardware::read_mig_state(const DeviceUuid& gpu, std::function<void(Result<mig::State>)> done) {
  run_on_gpu<mig::State>(
      gpu, "reading MIG of", std::chrono::seconds(30),
      [](const NvmlDriver::SessionPtr& session, unsigned index) {
        return mig::read_mig_state(*session, index);
      },
      std::move(done));
}

void NvmlMigHardware::apply_mig_plan(const DeviceUuid& gpu, const mig::Plan& plan,
                                     std::function<void(Result<MigApplied>)> done) {
  run_on_gpu<MigApplied>(
      gpu, "changing MIG of", kMigLimit,
      [gpu, plan](const NvmlDriver::SessionPtr& session, unsigned index) -> Result<MigApplied> {
        const auto hardware = mig::make_hardware(session, index, gpu);
        const auto report = mig::apply_plan(*hardware, plan);
        switch (report.outcome) {
          case mig::Outcome::kDone:
            return MigApplied{};
          case mig::Outcome::kNeedsReset:
            return MigApplied{.needs_reset = true};
          case mig::Outcome::kAsBefore:
          case mig::Outcome::kInBetween:
            break;
        }
        const Code code = report.error ? report.error->code() : Code::kInternal;
        return fail(code, mig::describe_report(report));
      },
      std::move(done));
}

}  // namespace gpulet::agent
