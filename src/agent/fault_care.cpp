#include "agent/fault_care.h"

#include "base/log.h"

namespace gpulet::agent {
namespace {

// Of the nodes that tell of their GPUs' health.
std::string all_nodes() { return health::kHealthLabel; }
std::string broken_nodes() {
  return std::string(health::kHealthLabel) + " in (" + std::string(name(health::Severity::kLost)) + "," +
         std::string(name(health::Severity::kWithdrawn)) + ")";
}

}  // namespace

FaultCare::FaultCare(FaultCarePorts ports, config::FaultSettings settings, std::uint64_t seed,
                     FaultCareTiming timing)
    : ports_(std::move(ports)),
      settings_(std::move(settings)),
      timing_(timing),
      reader_(cluster::Reader::start(ports_.loop, ports_.access, timing.read_limit)),
      events_(cluster::EventSender::start(ports_.loop, ports_.access, timing.events)),
      notes_(cluster::PodNotes::start(ports_.loop, ports_.access, timing.notes)),
      telling_(ports_.loop, ports_.access, timing.node),
      pods_({ports_.loop, ports_.holders, *reader_, [this] { on_pods(); }}, seed),
      news_({[this](cluster::Event event) { events_->send(std::move(event)); },
             [this](const cluster::PodRef& pod, std::optional<std::string> note) {
               if (const auto set = notes_->set(pod, health::kFaultAnnotation, std::move(note)); !set) {
                 log::warning("a Pod takes no note", set.error());
               }
             },
             [this](const cluster::PodRef& pod) { notes_->forget(pod); }}),
      moving_(moving_ports()) {}

void FaultCare::on_health(health::ViewPtr view) {
  view_ = std::move(view);
  update();
}

void FaultCare::apply(config::FaultSettings settings) {
  settings_ = std::move(settings);
  if (view_) update();
}

void FaultCare::update() {
  telling_.update(*view_, settings_);
  // Pods matter to those who tell or move them.
  const bool matter = settings_.pod_events || settings_.pod_notes || settings_.moving.enabled;
  pods_.update(matter ? *view_ : health::View{},
               {.namespaces = settings_.moving.enabled, .all = settings_.pod_notes});
  on_pods();
}

void FaultCare::on_pods() {
  const auto pods = pods_.pods();
  news_.update(*view_, pods, {.events = settings_.pod_events, .notes = settings_.pod_notes});
  moving_.update(view_, pods, {settings_.moving, settings_.cluster_percent});
}

FaultMovingPorts FaultCare::moving_ports() {
  return {
      .loop = ports_.loop,
      .evict =
          [this](const cluster::PodRef& pod, cluster::Eviction::News news) {
            return cluster::Eviction::start(ports_.loop, ports_.access, std::vector{pod}, std::move(news),
                                            timing_.eviction);
          },
      .share = [this](auto done) { share(std::move(done)); },
      .tell =
          [this](const MovingNews& news) {
            log::warning("a Pod on a device with a fault",
                         {{"pod", news.pod.name_space + "/" + news.pod.name},
                          {"reason", news.reason},
                          {"message", news.message}});
            events_->send({.warning = true, .reason = news.reason, .message = news.message, .pod = news.pod});
          }};
}

void FaultCare::share(std::function<void(Result<ClusterShare>)> done) {
  reader_->count_nodes(all_nodes(), [this, done = std::move(done)](const Result<std::size_t>& nodes) {
    if (!nodes) return done(fail(nodes.error()));
    reader_->count_nodes(broken_nodes(), [done, all = *nodes](const Result<std::size_t>& broken) {
      if (!broken) return done(fail(broken.error()));
      done(ClusterShare{all, *broken});
    });
  });
}

}  // namespace gpulet::agent
