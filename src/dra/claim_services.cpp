#include "dra/claim_services.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_unary_call.h>

#include "device_plugin/rpc_core.h"
#include "proto/dra_v1.grpc.pb.h"
#include "proto/dra_v1beta1.grpc.pb.h"
#include "proto/pluginregistration_v1.grpc.pb.h"

namespace gpulet::dra {
namespace {

namespace api = ::k8s::io::kubelet::pkg::apis::dra::v1;
using ServiceV1 = api::DRAPlugin::AsyncService;
using ServiceV1beta1 = ::k8s::io::kubelet::pkg::apis::dra::v1beta1::DRAPlugin::AsyncService;
using RegistrationService = pluginregistration::Registration::AsyncService;

constexpr const char* kPluginType = "DRAPlugin";
// The kubelet takes the first one that it knows to prepare claims, and the newest one of health.
constexpr const char* kSupportedVersions[] = {"v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth",
                                              "v1alpha1.DRAResourceHealth"};

template <class Service, class Request, class Response>
using AcceptMethod = void (Service::*)(grpc::ServerContext*, Request*,
                                       grpc::ServerAsyncResponseWriter<Response>*, grpc::CompletionQueue*,
                                       grpc::ServerCompletionQueue*, void*);

// What every call has in common: it is owned by the map of open calls, and has at most one operation.
struct OpenCall {
  virtual ~OpenCall() = default;
  grpc::ServerContext context;
  device_plugin::Tag taken, finished;
  bool in_operation = true;  // waiting for its request, or being finished
};

template <class Request, class Response>
struct UnaryCall final : OpenCall {
  Request request;
  grpc::ServerAsyncResponseWriter<Response> writer{&context};
};

std::vector<ClaimName> claim_names(const google::protobuf::RepeatedPtrField<api::Claim>& claims) {
  std::vector<ClaimName> names;
  for (const auto& claim : claims) names.push_back({claim.namespace_(), claim.name(), claim.uid()});
  return names;
}

api::NodePrepareResourcesResponse prepare_response(const ClaimHandlers::Prepared& results, bool with_shares) {
  api::NodePrepareResourcesResponse response;
  for (const auto& [uid, result] : results) {
    auto& answer = (*response.mutable_claims())[uid];
    if (!result) {
      answer.set_error(result.error().full_message());
      continue;
    }
    for (const auto& device : *result) {
      auto& added = *answer.add_devices();
      added.add_request_names(device.request);
      added.set_pool_name(device.pool);
      added.set_device_name(device.device);
      added.add_cdi_device_ids(device.cdi_id);
      if (with_shares && !device.share_id.empty()) added.set_share_id(device.share_id);
    }
  }
  return response;
}

api::NodeUnprepareResourcesResponse unprepare_response(const std::map<std::string, Status>& results) {
  api::NodeUnprepareResourcesResponse response;
  for (const auto& [uid, status] : results) {
    auto& answer = (*response.mutable_claims())[uid];
    if (!status) answer.set_error(status.error().full_message());
  }
  return response;
}

// The lock covers every field and the beginning of every operation: none begins after stop_serving(), and a
// call's end does not run before its operation is all there.
class GrpcClaimServices final : public ClaimServices,
                                public device_plugin::AddedServices,
                                public std::enable_shared_from_this<GrpcClaimServices> {
 public:
  std::shared_ptr<device_plugin::AddedServices> added_services() override { return shared_from_this(); }

  std::vector<grpc::Service*> services() override {
    std::vector<grpc::Service*> all = health_.services();
    all.insert(all.end(), {&v1_, &v1beta1_, &registration_});
    return all;
  }

  void start_serving(grpc::ServerCompletionQueue& queue) override {
    {
      std::lock_guard lock(mutex_);
      queue_ = &queue;
    }
    serve_prepare(v1_, true);
    serve_prepare(v1beta1_, false);
    serve_registration();
    health_.start_serving(queue);
  }

  void stop_serving() override {
    health_.stop_serving();
    std::lock_guard lock(mutex_);
    stopped_ = true;
    std::erase_if(calls_, [](const auto& call) { return !call.second->in_operation; });
  }

  void announce_services(Loop& loop, PluginIdentity identity,
                         std::function<void(const Status&)> registered) override {
    open_mailbox(loop, std::move(identity),
                 {.prepare = nullptr, .unprepare = nullptr, .registered = std::move(registered)});
  }

  // From a turn of the loop of its own: the caller may not be ready for its handlers yet.
  void open_services(Loop& loop, PluginIdentity identity, ClaimHandlers handlers) override {
    const auto mailbox = open_mailbox(loop, std::move(identity), std::move(handlers));
    device_plugin::Mailbox::post_task(mailbox, [this] {
      if (registration_status_ && handlers_->registered) handlers_->registered(*registration_status_);
      for (const auto& call : std::exchange(waiting_, {})) call.second.answer(handlers_.get());
    });
  }

  void close_services() override {
    health_.close_streams();
    std::shared_ptr<device_plugin::Mailbox> mailbox;
    {
      std::lock_guard lock(mutex_);
      mailbox = std::move(mailbox_);
      handlers_ = nullptr;
    }
    if (mailbox) mailbox->close_mailbox();
    registration_status_.reset();
    for (const auto& call : std::exchange(waiting_, {})) call.second.answer(nullptr);
  }

  void send_health(const HealthReport& report) override { health_.send_report(report); }

 private:
  template <class Response>
  using Reply = std::function<void(const grpc::Status&, const Response&)>;

  // A call whose reply is dropped, by a mailbox that closes for example, is answered all the same: the
  // kubelet would wait 45 s for it.
  template <class Request, class Response>
  struct ReplyGuard {
    ReplyGuard(std::weak_ptr<GrpcClaimServices> owner, std::uint64_t call)
        : services(std::move(owner)), id(call) {}
    ReplyGuard(const ReplyGuard&) = delete;
    ~ReplyGuard() { answer({grpc::StatusCode::UNAVAILABLE, kNotServed}, {}); }
    void answer(const grpc::Status& status, const Response& response) const {
      if (const auto alive = services.lock()) alive->template reply<Request, Response>(id, status, response);
    }

    const std::weak_ptr<GrpcClaimServices> services;
    const std::uint64_t id;
  };

  // A call that came before open_services(), on the loop. Null: it is not answered by handlers.
  struct WaitingCall {
    std::function<void(const ClaimHandlers*)> answer;
    Subscription limit;
  };

  // The one of announce_services() stays: it may have calls in it.
  std::shared_ptr<device_plugin::Mailbox> open_mailbox(Loop& loop, PluginIdentity identity,
                                                       ClaimHandlers handlers) {
    health_.open_streams();
    std::lock_guard lock(mutex_);
    loop_ = &loop;
    if (!mailbox_) mailbox_ = std::make_shared<device_plugin::Mailbox>(loop);
    identity_ = std::move(identity);
    handlers_ = std::make_shared<const ClaimHandlers>(std::move(handlers));
    return mailbox_;
  }

  // On the loop, which alone changes handlers_.
  void answer_or_wait(std::function<void(const ClaimHandlers*)> answer) {
    if (handlers_ && handlers_->prepare) return answer(handlers_.get());
    const std::uint64_t id = next_waiting_++;
    waiting_[id] = {std::move(answer), loop_->after(kMaxCallWait, [this, id] {
                      const auto call = waiting_.extract(id);
                      call.mapped().answer(nullptr);
                    })};
  }

  // Takes the next request of the method; `handle` runs on the gRPC thread, and replies from any thread, at
  // most once. It must not drop the reply under the lock.
  template <class Service, class Request, class Response>
  void accept_call(Service& service, AcceptMethod<Service, Request, Response> method,
                   std::function<void(const Request&, Reply<Response>)> handle) {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    const std::uint64_t id = next_id_++;
    auto owned = std::make_unique<UnaryCall<Request, Response>>();
    auto* call = owned.get();
    calls_.emplace(id, std::move(owned));
    call->finished.on_complete = [this, id](bool) { end_call(id); };
    call->taken.on_complete = [this, id, call, &service, method, handle](bool ok) {
      if (!ok) return end_call(id);
      accept_call(service, method, handle);
      if (!mark_taken(id)) return;
      handle(call->request,
             [guard = std::make_shared<ReplyGuard<Request, Response>>(weak_from_this(), id)](
                 const grpc::Status& status, const Response& answer) { guard->answer(status, answer); });
    };
    (service.*method)(&call->context, &call->request, &call->writer, queue_, queue_, &call->taken);
  }

  // False if the call was dropped.
  bool mark_taken(std::uint64_t id) {
    std::lock_guard lock(mutex_);
    if (stopped_) {
      calls_.erase(id);
      return false;
    }
    calls_.at(id)->in_operation = false;
    return true;
  }

  template <class Request, class Response>
  void reply(std::uint64_t id, const grpc::Status& status, const Response& answer) {
    std::lock_guard lock(mutex_);
    const auto it = calls_.find(id);
    if (stopped_ || it == calls_.end() || it->second->in_operation) return;
    auto& call = static_cast<UnaryCall<Request, Response>&>(*it->second);
    call.in_operation = true;
    if (status.ok()) {
      call.writer.Finish(answer, status, &call.finished);
    } else {
      call.writer.FinishWithError(status, &call.finished);
    }
  }

  void end_call(std::uint64_t id) {
    std::lock_guard lock(mutex_);
    calls_.erase(id);
  }

  template <class Service>
  void serve_prepare(Service& service, bool with_shares) {
    accept_call<Service, api::NodePrepareResourcesRequest, api::NodePrepareResourcesResponse>(
        service, &Service::RequestNodePrepareResources,
        [this, with_shares](const auto& request, Reply<api::NodePrepareResourcesResponse> reply) {
          this->hand_over(request.claims(), std::move(reply),
                          [with_shares](const ClaimHandlers& handlers, const std::vector<ClaimName>& claims,
                                        const Reply<api::NodePrepareResourcesResponse>& answer) {
                            handlers.prepare(
                                claims, [answer, with_shares](const ClaimHandlers::Prepared& results) {
                                  answer(grpc::Status::OK, prepare_response(results, with_shares));
                                });
                          });
        });
    accept_call<Service, api::NodeUnprepareResourcesRequest, api::NodeUnprepareResourcesResponse>(
        service, &Service::RequestNodeUnprepareResources,
        [this](const auto& request, Reply<api::NodeUnprepareResourcesResponse> reply) {
          this->hand_over(request.claims(), std::move(reply),
                          [](const ClaimHandlers& handlers, const std::vector<ClaimName>& claims,
                             const Reply<api::NodeUnprepareResourcesResponse>& answer) {
                            answer(grpc::Status::OK, unprepare_response(handlers.unprepare(claims)));
                          });
        });
  }

  // Runs `task` on the loop with the claims of the request.
  template <class Response, class Task>
  void hand_over(const google::protobuf::RepeatedPtrField<api::Claim>& claims, Reply<Response> reply,
                 Task task) {
    std::shared_ptr<device_plugin::Mailbox> mailbox;
    bool full = false;
    {
      std::lock_guard lock(mutex_);
      mailbox = mailbox_;
      full = calls_.size() > kMaxOpenCalls;
    }
    if (!mailbox) return reply({grpc::StatusCode::UNAVAILABLE, kNotServed}, {});
    if (full) return reply({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls are open"}, {});
    if (claims.size() > static_cast<int>(kMaxClaimsPerCall)) {
      return reply({grpc::StatusCode::INVALID_ARGUMENT, "too many claims in one request"}, {});
    }
    device_plugin::Mailbox::post_task(mailbox, [this, names = claim_names(claims), task, reply] {
      answer_or_wait([names, task, reply](const ClaimHandlers* handlers) {
        if (handlers != nullptr) return task(*handlers, names, reply);
        reply({grpc::StatusCode::UNAVAILABLE, "the agent that serves claims has not ended yet"}, {});
      });
    });
  }

  void serve_registration() {
    using pluginregistration::InfoRequest;
    using pluginregistration::PluginInfo;
    using pluginregistration::RegistrationStatus;
    using pluginregistration::RegistrationStatusResponse;
    accept_call<RegistrationService, InfoRequest, PluginInfo>(
        registration_, &RegistrationService::RequestGetInfo,
        [this](const InfoRequest&, const Reply<PluginInfo>& reply) {
          PluginInfo info;
          {
            std::lock_guard lock(mutex_);
            info.set_type(kPluginType);
            info.set_name(identity_.driver);
            info.set_endpoint(identity_.endpoint);
          }
          for (const auto* version : kSupportedVersions) info.add_supported_versions(version);
          if (info.name().empty()) {
            return reply({grpc::StatusCode::UNAVAILABLE, kNotServed}, {});
          }
          reply(grpc::Status::OK, info);
        });
    accept_call<RegistrationService, RegistrationStatus, RegistrationStatusResponse>(
        registration_, &RegistrationService::RequestNotifyRegistrationStatus,
        [this](const RegistrationStatus& status, const Reply<RegistrationStatusResponse>& reply) {
          report_registration(status);
          // An error here would deregister the driver again.
          reply(grpc::Status::OK, {});
        });
  }

  void report_registration(const pluginregistration::RegistrationStatus& status) {
    std::shared_ptr<device_plugin::Mailbox> mailbox;
    {
      std::lock_guard lock(mutex_);
      mailbox = mailbox_;
    }
    if (!mailbox) return;
    const Status result = status.plugin_registered()
                              ? Status()
                              : fail(Code::kFailedPrecondition,
                                     "the kubelet did not accept the registration: " + status.error());
    device_plugin::Mailbox::post_task(mailbox, [this, result] {
      registration_status_ = result;
      if (handlers_->registered) handlers_->registered(result);
    });
  }

  ServiceV1 v1_;
  ServiceV1beta1 v1beta1_;
  RegistrationService registration_;
  HealthStreams health_;
  std::mutex mutex_;
  grpc::ServerCompletionQueue* queue_ = nullptr;
  bool stopped_ = false;
  std::map<std::uint64_t, std::unique_ptr<OpenCall>> calls_;
  std::uint64_t next_id_ = 1;
  std::shared_ptr<device_plugin::Mailbox> mailbox_;
  std::shared_ptr<const ClaimHandlers> handlers_;
  PluginIdentity identity_;
  // Loop's thread only.
  Loop* loop_ = nullptr;
  std::optional<Status> registration_status_;  // the kubelet's newest answer
  std::map<std::uint64_t, WaitingCall> waiting_;
  std::uint64_t next_waiting_ = 0;
};

}  // namespace

std::shared_ptr<ClaimServices> ClaimServices::make_services() {
  return std::make_shared<GrpcClaimServices>();
}

}  // namespace gpulet::dra
