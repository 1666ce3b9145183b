// What a Server answers with: pages that are there already (site.h), or what must first be asked of somebody.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "web/document.h"
#include "web/watchers.h"

namespace gpulet::web {

using Field = std::pair<std::string_view, std::string_view>;

// A request; fields that are not there are empty.
struct Request {
  std::string_view method, target;
  std::string_view accept = {}, accept_encoding = {};
  // The last common name of the certificate that the client showed and that was verified; empty without one.
  std::string_view client = {};
  std::vector<Field> fields = {};  // all, in their order, names as they were sent
  std::string_view body = {};      // whole; empty where the server takes none (server.h)
};

struct Answer {
  int status = 200;
  std::string_view content_type = "text/plain; charset=utf-8";
  SharedText body;             // shared: connections that read slowly do not copy a page
  bool gzipped = false;        // the body is
  bool varies = false;         // by the request's Accept fields
  bool events = false;         // the body is only the first of what is told from now on
  bool asks_password = false;  // a browser asks its user
};

// May be called once, on the loop. A client that has gone meanwhile is no error.
using Reply = std::function<void(Answer)>;

// Loop's thread only.
class Service {
 public:
  virtual ~Service() = default;
  // Answers by `reply`, from inside this call or later; one that comes too late (server.h) finds the
  // connection closed. What `request` views is gone after either.
  virtual void serve(const Request& request, Time now, const Reply& reply) = 0;
  // Who tells on after an answer with `events`; null where no answer has them.
  virtual Watchers* live() { return nullptr; }
};

using Headers = std::vector<std::pair<std::string, std::string>>;
// The head of an answer, to the empty line; `keep_alive` says whether the connection stays open after it.
// `headers` come in place of ours of the same name.
std::string head_of(const Answer& answer, bool keep_alive, const Headers& headers = {});

}  // namespace gpulet::web
