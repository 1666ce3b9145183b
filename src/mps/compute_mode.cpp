#include "mps/compute_mode.h"

#include <deque>

namespace gpulet::mps {
namespace {

class NvidiaSmi {
 public:
  NvidiaSmi(Loop& loop, std::string driver_root, Duration limit)
      : loop_(loop), driver_root_(std::move(driver_root)), limit_(limit) {}

  void set(const DeviceUuid& gpu, ComputeMode mode, std::function<void(Status)> done) {
    waiting_.push_back({gpu, mode, std::move(done)});
    if (!call_) next();
  }

 private:
  struct Wanted {
    DeviceUuid gpu;
    ComputeMode mode;
    std::function<void(Status)> done;
  };

  void next() {
    if (waiting_.empty()) return;
    const Wanted wanted = std::move(waiting_.front());
    waiting_.pop_front();
    const auto program = find_driver_program(driver_root_, "nvidia-smi");
    if (!program) return end(wanted, fail(program.error()));
    const std::string mode = wanted.mode == ComputeMode::kDefault ? "DEFAULT" : "EXCLUSIVE_PROCESS";
    auto call = ProgramCall::start(loop_,
                                   {.program = *program,
                                    .arguments = {"-i", wanted.gpu.str(), "-c", mode},
                                    .environment = driver_environment(driver_root_)},
                                   limit_, [this, wanted](const Result<std::string>& said) {
                                     const auto ended = std::move(call_);
                                     end(wanted, said ? Status() : fail(said.error()));
                                   });
    if (!call) return end(wanted, fail(call.error()));
    call_ = std::move(*call);
  }

  // The next begins first: `done` may be our end.
  void end(const Wanted& wanted, Status status) {
    next();
    wanted.done(std::move(status));
  }

  Loop& loop_;
  std::string driver_root_;
  Duration limit_;
  std::deque<Wanted> waiting_;
  std::unique_ptr<ProgramCall> call_;
};

}  // namespace

SetComputeMode compute_mode_by_nvidia_smi(Loop& loop, std::string driver_root, Duration limit) {
  auto smi = std::make_shared<NvidiaSmi>(loop, std::move(driver_root), limit);
  return [smi](const DeviceUuid& gpu, ComputeMode mode, std::function<void(Status)> done) {
    smi->set(gpu, mode, std::move(done));
  };
}

}  // namespace gpulet::mps
