#include "k8s/client_config.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "k8s/api_client.h"
#include "k8s/objects.h"
#include "k8s/test_api.h"

namespace gpulet::k8s {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr const char* kVersion = "client.authentication.k8s.io/v1";

std::string answer_of(const json& status, const std::string& version = kVersion) {
  return json{{"apiVersion", version}, {"kind", "ExecCredential"}, {"status", status}}.dump();
}

// A kubeconfig with an exec user that runs a script.
class ExecPluginTest : public ApiTest {
 protected:
  void release_source() override { client_.reset(); }

  void script(const std::string& text) {
    ASSERT_TRUE(write_file_atomic(directory_ + "/plugin", "#!/bin/sh\n" + text + "\n", 0755));
  }
  // A program that prints `answer`.
  void says(const std::string& answer) { script("cat <<'END'\n" + answer + "\nEND"); }

  Result<ClientConfig> read_plugin_config(const std::string& exec, bool allowed = true,
                                          const std::string& cluster = "", Duration limit = 20s) {
    const std::string port = server_ ? std::to_string(server_->port()) : "1";
    EXPECT_TRUE(write_file_atomic(
        directory_ + "/config",
        "current-context: here\ncontexts: [{name: here, context: {cluster: home, user: eks}}]\n"
        "clusters:\n- name: home\n  cluster: {server: 'https://127.0.0.1:" +
            port + "', certificate-authority: ca.crt" + cluster +
            "}\nusers:\n- name: eks\n  user:\n    exec: {apiVersion: " + kVersion + ", " + exec + "}\n"));
    return load_kubeconfig(
        directory_ + "/config",
        {.allowed = allowed, .environment = {{"PATH", "bin:/usr/bin:/bin"}, {"MINE", "1"}}, .limit = limit});
  }
  // The access after the program has run.
  Result<Credential> credential(const std::string& exec = "command: ./plugin", Duration limit = 20s) {
    const auto access = read_plugin_config(exec, true, "", limit);
    if (!access) return fail(access.error());
    return access->credential();
  }
  std::string refusal(const std::string& exec = "command: ./plugin", Duration limit = 20s) {
    const auto got = credential(exec, limit);
    EXPECT_EQ(got ? "" : got.error().subject(), directory_ + "/config, user \"eks\"");
    return got ? "accepted" : got.error().message();
  }
  Result<http::ClientResponse> get() {
    std::promise<Result<http::ClientResponse>> answer;
    loop_.post([&] {
      client_->send_request({.method = "GET", .path = "/x"},
                            [&](Result<http::ClientResponse> got) { answer.set_value(std::move(got)); });
    });
    return answer.get_future().get();
  }
  std::string config_file(const std::string& name) {
    return read_file(directory_ + "/" + name).value_or("none");
  }

  std::unique_ptr<ApiClient> client_;
};

TEST_F(ExecPluginTest, ProgramGetsExecInfoAndReturnsCredentials) {
  script("printf '%s|%s|%s|%s|%s' \"$KUBERNETES_EXEC_INFO\" \"$1\" \"$2\" \"$MINE\" \"$REGION\" >" +
         directory_ + "/told; cat >>" + directory_ + "/told\ncat <<'END'\n" + answer_of({{"token", "abc"}}) +
         "\nEND");
  const auto access = read_plugin_config(
      "command: ./plugin, args: [get-token, 'two words'], env: [{name: REGION, value: eu}], "
      "interactiveMode: Never, provideClusterInfo: true",
      true,
      ", tls-server-name: inside, extensions: [{name: client.authentication.k8s.io/exec, "
      "extension: {audience: a, number: 7, text: '7', on: true, list: [x]}}]");
  ASSERT_TRUE(access) << access.error().full_message();
  EXPECT_EQ(config_file("told"), "none");  // reading the kubeconfig runs nothing
  const auto credential = access->credential();
  ASSERT_TRUE(credential) << credential.error().full_message();
  EXPECT_EQ(credential->token, "abc");
  const auto told = text::split(config_file("told"), '|');
  ASSERT_EQ(told.size(), 5u);
  EXPECT_EQ(told[1] + "|" + told[2] + "|" + told[3] + "|" + told[4], "get-token|two words|1|eu");
  const auto info = json::parse(told[0]);
  EXPECT_EQ(info["apiVersion"], kVersion);
  EXPECT_EQ(info["kind"], "ExecCredential");
  EXPECT_EQ(info["spec"]["interactive"], false);
  const auto& cluster = info["spec"]["cluster"];
  EXPECT_EQ(cluster["server"], "https://127.0.0.1:1");
  EXPECT_EQ(cluster["tls-server-name"], "inside");
  const std::string authority = cluster["certificate-authority-data"];
  ASSERT_TRUE(write_file_atomic(directory_ + "/config", "{}"));
  EXPECT_EQ(authority.substr(0, 12), "LS0tLS1CRUdJ");  // "-----BEGI"
  EXPECT_EQ(cluster["config"],
            (json{{"audience", "a"}, {"number", 7}, {"text", "7"}, {"on", true}, {"list", {"x"}}}));
}

TEST_F(ExecPluginTest, ClusterInfoIsPassedOnlyOnRequest) {
  script("printf '%s' \"$KUBERNETES_EXEC_INFO\" >" + directory_ + "/told\ncat <<'END'\n" +
         answer_of({{"token", "abc"}}) + "\nEND");
  ASSERT_TRUE(credential());
  EXPECT_FALSE(json::parse(config_file("told"))["spec"].contains("cluster"));
}

TEST_F(ExecPluginTest, TokenIsSentAndCachedUntilItExpires) {
  start_server([](const Received&) { return Reply{200, "{}"}; });
  script("echo x >>" + directory_ + "/runs\nn=$(wc -l <" + directory_ + "/runs)\n" +
         "test \"$n\" -gt 2 && exp=2100-01-01T00:00:00Z || exp=2020-01-01T00:00:00+02:00\n"
         "echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":"
         "{\"token\":\"run-'$n'\",\"expirationTimestamp\":\"'$exp'\"}}'");
  const auto access = read_plugin_config("command: ./plugin");
  ASSERT_TRUE(access) << access.error().full_message();
  call_on_loop([&] { client_ = std::make_unique<ApiClient>(loop_, *access, 10s); });
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(get());
  std::string tokens;
  for (const auto& request : server_->received_requests()) {
    const auto at = request.head.find("Bearer run-");
    ASSERT_NE(at, std::string::npos) << request.head;
    tokens += request.head[at + 11];
  }
  EXPECT_EQ(tokens, "12333");                       // the first two had expired
  EXPECT_EQ(access->credential()->token, "run-3");  // every copy shares one cache
}

TEST_F(ExecPluginTest, CertificateIsUsedAndARenewedOneOpensANewConnection) {
  start_server([](const Received&) { return Reply{200, "{}"}; });
  server_.reset();
  server_ = std::make_unique<TestApiServer>(
      certificate_, [](const Received&) { return Reply{200, "{}"}; }, &authority_);
  for (const char* name : {"me", "again"}) {
    const auto mine = Certificate::make_certificate(name, &authority_, "");
    ASSERT_TRUE(write_file_atomic(directory_ + "/" + name,
                                  answer_of({{"clientCertificateData", mine.pem()},
                                             {"clientKeyData", mine.key_pem()},
                                             {"expirationTimestamp", "2020-01-01T00:00:00.5Z"}})));
  }
  script("test -e " + directory_ + "/ran && cat " + directory_ + "/again || cat " + directory_ + "/me\n: >" +
         directory_ + "/ran");
  const auto access = read_plugin_config("command: ./plugin");
  ASSERT_TRUE(access) << access.error().full_message();
  call_on_loop([&] { client_ = std::make_unique<ApiClient>(loop_, *access, 10s); });
  ASSERT_TRUE(get());
  ASSERT_TRUE(get());
  const auto received = server_->received_requests();
  ASSERT_EQ(received.size(), 2u);
  EXPECT_EQ(received[0].client, "me");
  EXPECT_EQ(received[1].client, "again");
  EXPECT_EQ(received[0].head.find("Authorization"), std::string::npos);
}

TEST_F(ExecPluginTest, ServicesRunNoProgram) {
  says(answer_of({{"token", "abc"}}));
  const auto access = read_plugin_config("command: ./plugin", false);
  ASSERT_FALSE(access);
  EXPECT_EQ(access.error().code(), Code::kUnsupported);
  EXPECT_EQ(access.error().subject(), directory_ + "/config:9:11");
  EXPECT_NE(access.error().message().find("services never run"), std::string::npos)
      << access.error().full_message();
  EXPECT_EQ(find_client_config({{"KUBECONFIG", directory_ + "/config"}, {"NODE_NAME", "n"}}).error().code(),
            Code::kUnsupported);
}

TEST_F(ExecPluginTest, FailureIsReportedInOneLine) {
  script("printf '\\n\\033[31mUnable to locate credentials\\nmore\\n' >&2; echo secret; exit 255");
  EXPECT_EQ(refusal(), directory_ + "/plugin ended with exit code 255:  [31mUnable to locate credentials");
  script("kill -TERM $$");
  EXPECT_EQ(refusal(), directory_ + "/plugin ended with signal 15 (Terminated)");
}

TEST_F(ExecPluginTest, MissingProgramIsReportedWithItsInstallHint) {
  EXPECT_EQ(refusal("command: no-such-plugin, installHint: install it"),
            "program not found: no-such-plugin in PATH; install it");
  EXPECT_EQ(credential("command: no-such-plugin").error().code(), Code::kNotFound);
  EXPECT_EQ(refusal("command: ./plugin"), "program not found: " + directory_ + "/plugin");
  ASSERT_TRUE(write_file_atomic(directory_ + "/plugin", "no program", 0755));
  EXPECT_EQ(refusal(), directory_ + "/plugin: cannot start: Exec format error");
}

TEST_F(ExecPluginTest, HangingProgramIsKilledWithItsChildren) {
  script("sleep 1000 & echo $! >" + directory_ + "/child; echo waiting >&2; sleep 1000");
  EXPECT_EQ(refusal("command: ./plugin", 1s), directory_ + "/plugin did not end within 1 s: waiting");
  const auto child = text::parse_unsigned(text::trim(config_file("child")));
  ASSERT_TRUE(child);
  EXPECT_TRUE(eventually([&] {
    const auto state = read_file("/proc/" + std::to_string(*child) + "/stat");
    return !state || state->find(") Z ") != std::string::npos;
  }));
}

TEST_F(ExecPluginTest, ProgramWithRunningChildrenEnds) {
  script("sleep 1000 &\necho $! >" + directory_ + "/child\ncat <<'END'\n" + answer_of({{"token", "abc"}}) +
         "\nEND");
  EXPECT_EQ(credential("command: ./plugin", 30s).value().token, "abc");
  ::kill(static_cast<pid_t>(*text::parse_unsigned(text::trim(config_file("child")))), SIGKILL);
}

TEST_F(ExecPluginTest, OutputIsBounded) {
  script("yes '{\"token\"' ");
  EXPECT_EQ(refusal(), directory_ + "/plugin printed more than 1 MiB");
  // Standard error is read to its end and discarded.
  script("head -c 3000000 /dev/zero | tr '\\0' e >&2\ncat <<'END'\n" + answer_of({{"token", "abc"}}) +
         "\nEND");
  EXPECT_EQ(credential().value().token, "abc");
}

TEST_F(ExecPluginTest, InvalidOutputIsRefusedAndNotPrinted) {
  const auto message = [](const std::string& answer) {
    const auto parsed = parse_exec_credential(answer, kVersion);
    return parsed ? "accepted" : parsed.error().message();
  };
  EXPECT_EQ(message(""), "printed nothing");
  EXPECT_EQ(message("secret"), "did not print a JSON object");
  EXPECT_EQ(message("[]"), "did not print a JSON object");
  EXPECT_EQ(message(R"({"kind":"Status"})"), "did not print an ExecCredential");
  EXPECT_EQ(
      message(answer_of({{"token", "a"}}, "client.authentication.k8s.io/v1beta1")),
      "printed the apiVersion \"client.authentication.k8s.io/v1beta1\", and the kubeconfig has apiVersion: " +
          std::string(kVersion));
  EXPECT_EQ(message(answer_of({{"token", "a"}}, "v1\n\tlevel=error")),
            "printed the apiVersion \"v1\\n\\tlevel=error\", and the kubeconfig has apiVersion: " +
                std::string(kVersion));
  EXPECT_EQ(message(answer_of(nullptr)), "printed neither a token nor a certificate");
  EXPECT_EQ(message(answer_of({{"token", 7}})), "printed neither a token nor a certificate");
  EXPECT_EQ(message(answer_of({{"token", "a\r\nEvil: b"}})), "printed a token of more than one line");
  EXPECT_EQ(message(answer_of({{"clientCertificateData", "x"}})),
            "printed a certificate without its key, or a key without its certificate");
  for (const char* bad : {"tomorrow", "2026-01-31", "2026-01-31T12:00:00", "2026-01-31T12:00:00+2:00",
                          "2026-01-31T12:00:00.", "2026-13-31T12:00:00Z"}) {
    EXPECT_EQ(message(answer_of({{"token", "a"}, {"expirationTimestamp", bad}})),
              "printed the expirationTimestamp \"" + std::string(bad) + "\", which is not a time");
  }
  const auto zone = parse_exec_credential(
      answer_of({{"token", "a"}, {"expirationTimestamp", "2026-01-31T12:00:00.123456-01:30"}}), kVersion);
  EXPECT_EQ(format_rfc3339(*zone->expires), "2026-01-31T13:30:00Z");
  says("secret");
  EXPECT_EQ(refusal(), directory_ + "/plugin did not print a JSON object");
}

TEST_F(ExecPluginTest, KubeconfigFieldsAreValidated) {
  const auto message = [&](const std::string& exec) {
    const auto access = read_plugin_config(exec);
    return access ? "accepted" : access.error().message();
  };
  EXPECT_EQ(message("args: [x]"), "command is missing");
  EXPECT_EQ(message("command: a, interactiveMode: Sometimes"),
            "interactiveMode must be Never, IfAvailable or Always");
  EXPECT_EQ(message("command: aws, apiVersion: client.authentication.k8s.io/v1alpha1"),
            "the apiVersion must be client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1; "
            "a newer aws "
            "writes such a kubeconfig");
  EXPECT_EQ(message("command: a, apiVersion: client.authentication.k8s.io/v1beta1"), "accepted");
}

// Standard input is a terminal during the lifetime of this object.
class Terminal {
 public:
  Terminal() : mine_(::posix_openpt(O_RDWR | O_NOCTTY)), saved_(::dup(STDIN_FILENO)) {
    ::grantpt(mine_.get());
    ::unlockpt(mine_.get());
    const FileDescriptor its(::open(::ptsname(mine_.get()), O_RDWR | O_NOCTTY));
    ::dup2(its.get(), STDIN_FILENO);
  }
  ~Terminal() { ::dup2(saved_.get(), STDIN_FILENO); }
  void type(std::string_view text) {
    ASSERT_EQ(::write(mine_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

 private:
  FileDescriptor mine_, saved_;
};

TEST_F(ExecPluginTest, InteractiveModeFollowsTheTerminal) {
  script(
      "read word; echo "
      "'{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":"
      "{\"token\":\"'$word'\"}}'; printf '%s' \"$KUBERNETES_EXEC_INFO\" >" +
      directory_ + "/told");
  {
    Terminal terminal;
    terminal.type("sesame\n");
    EXPECT_EQ(credential("command: ./plugin, interactiveMode: Always").value().token, "sesame");
    EXPECT_EQ(json::parse(config_file("told"))["spec"]["interactive"], true);
    // Never: standard input is empty.
    terminal.type("sesame\n");
    EXPECT_EQ(refusal("command: ./plugin, interactiveMode: Never"),
              directory_ + "/plugin printed neither a token nor a certificate");
  }
  const FileDescriptor saved(::dup(STDIN_FILENO)), null(::open("/dev/null", O_RDONLY));
  ::dup2(null.get(), STDIN_FILENO);
  EXPECT_EQ(
      refusal("command: ./plugin, interactiveMode: Always"),
      directory_ + "/plugin requires a terminal (interactiveMode: Always), and standard input is not one");
  ::dup2(saved.get(), STDIN_FILENO);
}

}  // namespace
}  // namespace gpulet::k8s
