#include "agent/nvml_mig.h"

#include "mig/apply.h"
#include "mig/read.h"

namespace gpulet::agent {

template <class T>
void NvmlMig::about(const DeviceUuid& gpu, const std::string& what, Duration limit,
                    std::function<Result<T>(const NvmlDriver::SessionPtr&, unsigned)> work,
                    std::function<void(Result<T>)> done) {
  auto* driver = driver_();
  if (driver == nullptr) {
    loop_.post(
        [done = std::move(done)] { done(fail(Code::kUnavailable, "the driver is being initialised")); });
    return;
  }
  driver->about<T>(gpu, what, limit, std::move(work), std::move(done));
}

void NvmlMig::read(const DeviceUuid& gpu, std::function<void(Result<mig::State>)> done) {
  about<mig::State>(
      gpu, "reading MIG of", std::chrono::seconds(30),
      [](const NvmlDriver::SessionPtr& session, unsigned index) { return mig::read(*session, index); },
      std::move(done));
}

void NvmlMig::apply(const DeviceUuid& gpu, const mig::Plan& plan,
                    std::function<void(Result<MigApplied>)> done) {
  about<MigApplied>(
      gpu, "changing MIG of", kMigLimit,
      [gpu, plan](const NvmlDriver::SessionPtr& session, unsigned index) -> Result<MigApplied> {
        const auto hardware = mig::make_hardware(session, index, gpu);
        const auto report = mig::apply(*hardware, plan);
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
        return fail(code, mig::describe(report));
      },
      std::move(done));
}

}  // namespace gpulet::agent
