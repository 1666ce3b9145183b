#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "mps/control_program.h"
#include "mps/daemon.h"

namespace gpulet::mps {
namespace {

class NvidiaSmi {
 public:
  NvidiaSmi(Loop& loop, std::string driver_root, Duration limit)
      : loop_(loop), driver_root_(std::move(driver_root)), limit_(limit) {}

  void queue_mode(const DeviceUuid& gpu, ComputeMode mode, std::function<void(Status)> done) {
    pending_.push_back({gpu, mode, std::move(done)});
    if (!call_) run_next();
  }

 private:
  struct PendingMode {
    DeviceUuid gpu;
    ComputeMode mode;
    std::function<void(Status)> done;
  };

  void run_next() {
    if (pending_.empty()) return;
    const PendingMode request = std::move(pending_.front());
    pending_.pop_front();
    const auto program = find_driver_program(driver_root_, "nvidia-smi");
    if (!program) return end(request, fail(program.error()));
    const std::string mode = request.mode == ComputeMode::kDefault ? "DEFAULT" : "EXCLUSIVE_PROCESS";
    auto call = ProgramCall::start_call(
        loop_, {.program = *program, .arguments = {"-i", request.gpu.str(), "-c", mode}}, limit_,
        [this, request](const Result<std::string>& output) {
          const auto ended = std::move(call_);
          end(request, output ? Status() : fail(output.error()));
        });
    if (!call) return end(request, fail(call.error()));
    call_ = std::move(*call);
  }

  // Start the next call first: `done` may destroy this object.
  void end(const PendingMode& request, Status status) {
    run_next();
    request.done(std::move(status));
  }

  Loop& loop_;
  std::string driver_root_;
  Duration limit_;
  std::deque<PendingMode> pending_;
  std::unique_ptr<ProgramCall> call_;
};

}  // namespace

SetComputeMode nvidia_smi_compute_mode(Loop& loop, std::string driver_root, Duration limit) {
  auto smi = std::make_shared<NvidiaSmi>(loop, std::move(driver_root), limit);
  return [smi](const DeviceUuid& gpu, ComputeMode mode, std::function<void(Status)> done) {
    smi->queue_mode(gpu, mode, std::move(done));
  };
}

}  // namespace gpulet::mps
