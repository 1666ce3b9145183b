// What the agents of some nodes say, asked when somebody wants it: an agent whose page is older than `fresh`
// is asked anew, for all who wait together; one that nobody asks for costs nothing.
//
// Cost: each autoscaler asks once in its period (15 s): a page for each node that runs one of its Pods, some
// 100 KB and 1 ms of processor time for 8 GPUs. Nodes without such Pods are never asked, however many there
// are. An agent that fails costs the values of its own Pods, and is left alone for `fresh`; what it said last
// counts until it is too old (valid()).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "metrics_api/agent_page.h"
#include "metrics_api/agents.h"
#include "metrics_api/scraper.h"

namespace gpulet::metrics_api {

struct PagesOptions {
  Duration fresh = std::chrono::seconds(10);    // a page is not asked for again before
  Duration oldest = std::chrono::minutes(1);    // what was measured longer ago is not told
  Duration patience = std::chrono::seconds(4);  // with the agents, for one answer
};
// A node that nobody asked for during so long is forgotten.
inline constexpr Duration kForgetNode = std::chrono::minutes(10);

struct NodePage {
  AgentPage page;
  WallTime measured;  // by our clock
  Time measured_at;
};

// Loop's thread only.
class Pages {
 public:
  using Found = std::map<std::string, std::shared_ptr<const NodePage>>;  // by node; not those without one
  using Done = std::function<void(Result<Found>)>;

  // `agents` and `scraper` outlive this.
  Pages(Loop& loop, Agents& agents, Scraper& scraper, PagesOptions options)
      : loop_(loop), agents_(agents), scraper_(scraper), options_(options) {}
  Pages(const Pages&) = delete;

  // The pages of these nodes that are not too old, once every agent was asked that must be, or `patience` is
  // over: at once or later, once; never when this object is gone before. Errors: of finding the agents.
  void get(const std::set<std::string>& nodes, Done done);

  std::size_t remembered() const { return nodes_.size(); }

 private:
  struct Batch {
    std::set<std::string> nodes, waits_for;
    Done done;
    Subscription patience;
  };
  struct Node {
    std::shared_ptr<const NodePage> page;  // the last
    std::optional<Time> tried;
    Time wanted{};  // last
    bool asking = false;
    bool told = false;  // that it does not answer
    std::vector<std::weak_ptr<Batch>> waiting;
  };
  void ask(const AgentAddresses& addresses, const std::shared_ptr<Batch>& batch);
  void on_page(const std::string& name, Result<AgentPage> page);
  void finish(const std::shared_ptr<Batch>& batch);
  bool valid(const NodePage& page) const { return loop_.now() - page.measured_at <= options_.oldest; }
  void forget();

  Loop& loop_;
  Agents& agents_;
  Scraper& scraper_;
  const PagesOptions options_;
  std::map<std::string, Node> nodes_;
  std::set<std::shared_ptr<Batch>> batches_;
};

}  // namespace gpulet::metrics_api
