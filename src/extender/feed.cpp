#include "extender/feed.h"

#include "base/log.h"
#include "cluster/json_members.h"
#include "cluster/objects.h"
#include "scheduler/request.h"

namespace gpulet::extender {
namespace {

using cluster::ApiResponse;

constexpr const char* kBound =
    "fieldSelector=spec.nodeName%21%3D,status.phase%21%3DSucceeded,status.phase%21%3DFailed";
constexpr std::size_t kMaxPolicyBytes = 256;

std::string key_of(std::string_view object) {
  return cluster::metadata_text(object, "namespace") + "/" + cluster::metadata_text(object, "name");
}

}  // namespace

Feed::Feed(Loop& loop, const cluster::Access& access, scheduler::ClusterView& view,
           cluster::CollectionTiming timing, std::function<void()> listed)
    : loop_(loop), access_(access), view_(view), timing_(timing), listed_(std::move(listed)) {
  nodes_.known = [this] { return view_.node_names(); };
  nodes_.forget = [this](const std::string& name) { view_.remove_node(name); };
  follow(
      nodes_, {.path = scheduler::kGpuNodesPath, .right = "the kind GpuNode, and list and watch on gpunodes"},
      [this](std::string_view object) { return take_node(object); },
      [](std::string_view object) { return cluster::metadata_text(object, "name"); });
  pods_.known = [this] { return view_.pod_keys(); };
  pods_.forget = [this](const std::string& key) {
    const auto slash = key.find('/');
    view_.remove_pod(key.substr(0, slash), key.substr(slash + 1));
  };
  follow(
      pods_, {.path = "/api/v1/pods", .query = kBound, .right = "list and watch on pods"},
      [this](std::string_view object) { return take_pod(object); }, key_of);
  namespaces_.known = [this] {
    std::vector<std::string> names;
    for (const auto& [name, policy] : policies_) names.push_back(name);
    return names;
  };
  namespaces_.forget = [this](const std::string& name) { policies_.erase(name); };
  follow(
      namespaces_, {.path = "/api/v1/namespaces", .right = "list and watch on namespaces", .metadata = true},
      [this](std::string_view object) { return take_namespace(object); },
      [](std::string_view object) { return cluster::metadata_text(object, "name"); });
}

Feed::~Feed() = default;

void Feed::follow(Followed& followed, cluster::Collection collection, Take found, Take gone) {
  cluster::CollectionEvents events;
  events.listing = [&followed] {
    followed.listing = true;
    followed.found.clear();
  };
  events.found = [this, &followed, found = std::move(found)](std::string_view object) {
    auto key = found(object);
    if (followed.listing && !key.empty()) followed.found.insert(std::move(key));
    // As it happened: who leaves after this one came leaves it where it is.
    if (!followed.listing && ready()) view_.settle();
  };
  events.gone = [&followed, gone = std::move(gone)](std::string_view object) {
    followed.forget(gone(object));
  };
  events.listed = [this, &followed] {
    followed.listing = false;
    for (const auto& key : followed.known()) {
      if (!followed.found.contains(key)) followed.forget(key);
    }
    followed.found = {};
    if (&followed == &pods_) view_.set_pods_complete();
    if (!ready() || !listed_ || telling_) return;
    telling_ = loop_.after(Duration::zero(), [this] {
      const auto listed = std::exchange(listed_, nullptr);
      listed();
    });
  };
  followed.watch =
      cluster::CollectionWatch::start(loop_, access_, std::move(collection), timing_, std::move(events));
}

bool Feed::ready() const {
  return nodes_.watch && pods_.watch && namespaces_.watch && nodes_.watch->lists() != 0 &&
         pods_.watch->lists() != 0 && namespaces_.watch->lists() != 0;
}

std::vector<std::string> Feed::trouble() const {
  std::vector<std::string> all;
  for (const auto* followed : {&nodes_, &pods_, &namespaces_}) {
    if (!followed->watch->trouble().empty()) all.push_back(followed->watch->trouble());
  }
  return all;
}

const std::string& Feed::policy_of(const std::string& name_space) const {
  static const std::string kNone;
  const auto found = policies_.find(name_space);
  return found == policies_.end() ? kNone : found->second;
}

FeedNumbers Feed::numbers() const {
  return {nodes_.watch->lists() + pods_.watch->lists() + namespaces_.watch->lists(), refused_};
}

std::string Feed::take_node(std::string_view object) {
  auto node = scheduler::decode_gpu_node(object);
  if (node) {
    std::string name = node->name;
    view_.set_node(name, std::move(node->node));
    return name;
  }
  ++refused_;
  if (!std::exchange(told_refused_, true)) log::warning("a GpuNode cannot be read", node.error());
  // As if nothing were published: what was known of it may be wrong by now.
  view_.remove_node(cluster::metadata_text(object, "name"));
  return {};
}

std::string Feed::take_pod(std::string_view object) {
  auto pod = scheduler::parse_pod(object);
  if (!pod) {
    ++refused_;
    return {};
  }
  std::string key = pod->key();
  view_.set_pod(std::move(*pod));
  return key;
}

std::string Feed::take_namespace(std::string_view object) {
  std::string name = cluster::metadata_text(object, "name");
  std::string policy;
  cluster::JsonMembers members(
      cluster::kMaxCollectedBytes,
      [&](std::string_view key, std::string_view metadata) {
        if (key != "metadata") return;
        cluster::JsonMembers inner(
            cluster::kMaxCollectedBytes,
            [&](std::string_view field, std::string_view value) {
              if (field == "annotations") policy = cluster::text_member(value, scheduler::kPolicyAnnotation);
            },
            nullptr);
        static_cast<void>(inner.feed(metadata));
      },
      nullptr);
  static_cast<void>(members.feed(object));
  if (policy.empty() || policies_.size() >= kMaxNamespaces) {
    policies_.erase(name);
  } else {
    policies_[name] = policy.substr(0, kMaxPolicyBytes);
  }
  return name;
}

void Feed::pod(const std::string& name_space, const std::string& name,
               std::function<void(Result<scheduler::PodRequest>)> done) {
  if (fetches_.size() >= kMaxFetches || !cluster::is_name(name_space) || !cluster::is_name(name)) {
    const bool named = cluster::is_name(name_space) && cluster::is_name(name);
    return done(named ? fail(Code::kUnavailable, "too many Pods are being asked for; later")
                      : fail(Code::kInvalidArgument, "that is no name of a Pod: " + name_space + "/" + name));
  }
  const auto id = next_fetch_++;
  auto& client = fetches_[id];
  client = std::make_unique<cluster::ApiClient>(loop_, access_, timing_.request_limit);
  client->request({.method = "GET", .path = "/api/v1/namespaces/" + name_space + "/pods/" + name},
                  [this, id, done = std::move(done)](const Result<ApiResponse>& response) {
                    fetches_.erase(id);
                    on_pod(response, done);
                  });
}

void Feed::on_pod(const Result<ApiResponse>& response,
                  const std::function<void(Result<scheduler::PodRequest>)>& done) {
  if (!response) return done(fail(response.error()));
  if (response->status == 404) return done(fail(Code::kNotFound, "there is no such Pod"));
  if (response->status == 403) {
    return done(fail(Code::kPermissionDenied, cluster::said(*response) + " (needed: get on pods)"));
  }
  if (response->status != 200) return done(fail(Code::kUnavailable, cluster::said(*response)));
  done(scheduler::parse_pod(response->body));
}

}  // namespace gpulet::extender
