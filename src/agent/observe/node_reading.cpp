#include "agent/observe/node_reading.h"

#include <utility>

#include "agent/driver/nvml_adapters.h"
#include "agent/observe/gpu_load_forecaster.h"

namespace gpulet::agent {
namespace {

// The snapshot first, then every GPU's sample; ends the loop with the last answer.
class NodeReader {
 public:
  NodeReader(Loop& loop, NvmlDriverOptions options, std::function<void()> done)
      : loop_(loop),
        limit_(options.call_timeout),
        driver_(loop, std::move(options)),
        sampler_(driver_, limit_),
        done_(std::move(done)) {
    sampler_.set_fields(load_sample_fields());
    driver_.open_driver([this](const Status& opened) {
      if (!opened) return finish(fail(opened.error()));
      driver_.read_snapshot([this](Result<inventory::Snapshot> snapshot) {
        if (!snapshot) return finish(fail(snapshot.error()));
        read_loads(std::make_shared<const inventory::Snapshot>(std::move(*snapshot)));
      });
    });
  }

  Result<NodeReading> take_result() { return std::move(result_); }

 private:
  void read_loads(inventory::SnapshotPtr snapshot) {
    reading_.snapshot = std::move(snapshot);
    waiting_ = reading_.snapshot->gpus.size();
    if (waiting_ == 0) return finish(std::move(reading_));
    for (std::size_t i = 0; i < reading_.snapshot->gpus.size(); ++i) {
      sampler_.sample_gpu(reading_.snapshot, i, loop_.now(), [this](Result<Sampler::Sampled> sampled) {
        if (sampled) sample_.gpus.push_back(std::move(sampled->gpu));
        if (--waiting_ > 0) return;
        GpuLoadForecaster loads;
        loads.add_load_sample(sample_, {}, loop_.wall_now());
        reading_.loads = loads.gpu_loads(loop_.wall_now());
        finish(std::move(reading_));
      });
    }
  }
  void finish(Result<NodeReading> result) {
    result_ = std::move(result);
    done_();
  }

  Loop& loop_;
  const Duration limit_;
  NodeReading reading_;
  metrics::Sample sample_;
  std::size_t waiting_ = 0;
  Result<NodeReading> result_ = fail(Code::kInternal, "the driver was not read");
  NvmlDriver driver_;
  NvmlSampler sampler_;
  std::function<void()> done_;
};

}  // namespace

Result<NodeReading> read_node_once(NvmlDriverOptions options) {
  options.events = false;
  EpollLoop loop;
  NodeReader reader(loop, std::move(options), [&] { loop.stop_loop(); });
  loop.run_loop();
  return reader.take_result();
}

}  // namespace gpulet::agent
