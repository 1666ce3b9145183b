#include "agent/nvml_sampler.h"

namespace gpulet::agent {

void NvmlSampler::want(std::set<metrics::Field> fields) {
  // What is measured between two samples goes on.
  if (fields == wanted_) return;
  wanted_ = std::move(fields);
  readers_.clear();
}

void NvmlSampler::sample(inventory::SnapshotPtr snapshot, std::size_t index, Time now, Done done) {
  const DeviceUuid uuid = snapshot->gpus[index].uuid;
  std::erase_if(readers_, [&](const auto& one) { return snapshot->find(one.first) == nullptr; });
  auto& kept = readers_[uuid];
  auto reader = kept ? std::exchange(kept, nullptr) : std::make_shared<metrics::GpuReader>(wanted_);
  driver_.about<Sampled>(
      uuid, "sampling", limit_,
      [reader, snapshot, index, now, proc = proc_](const NvmlDriver::SessionPtr& session,
                                                   unsigned) -> Result<Sampled> {
        Sampled sampled{reader->read(*session, *snapshot, index, now.time_since_epoch()), {}};
        sampled.cgroups = metrics::read_cgroups(sampled.gpu, proc);
        metrics::read_names(sampled.gpu, proc);
        return sampled;
      },
      [this, alive = std::weak_ptr(alive_), uuid, reader, done = std::move(done)](Result<Sampled> sampled) {
        if (alive.expired()) return;
        // Of a call that was given up the reader may be in use for ever.
        const bool back = sampled || sampled.error().code() != Code::kDeadlineExceeded;
        if (const auto at = readers_.find(uuid); back && at != readers_.end()) at->second = reader;
        done(std::move(sampled));
      });
}

}  // namespace gpulet::agent
