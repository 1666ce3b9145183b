// Secrets in every format that a node's files have, and what must stay.
#include "doctor/redact.h"

#include <gmock/gmock.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "base/text.h"
#include "base/yaml_writer.h"
#include "config/yaml.h"
#include "runtimes/toml.h"

namespace gpulet::doctor {
namespace {

using testing::HasSubstr;
using testing::Not;

// A generator of secrets, of names for them, and of documents that hold them beside what support needs.

class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed) {}

  std::size_t below(std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random_);
  }
  template <class T>
  const T& pick(const std::vector<T>& all) {
    return all[below(all.size())];
  }

  // Three parts of letters and digits, joined by characters that formats escape. None may survive.
  std::vector<std::string> secret_parts() {
    std::vector<std::string> parts(3);
    for (std::string& part : parts)
      for (std::size_t i = 0; i < 9; ++i)
        part += "abcdefghijklmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"[below(58)];
    return parts;
  }
  std::string joiner(const std::string& allowed) { return std::string(1, allowed[below(allowed.size())]); }

  std::string name() {
    static const std::vector<std::string> kNames{
        "pass",      "password",      "DB_PASS",     "encryption_key",  "encryptionKey",
        "apiKey",    "token",         "auth",        "client-key-data", "aws_secret_access_key",
        "secret",    "identitytoken", "passphrase",  "privateKey",      "sharedKey",
        "REDIS_PWD", "admin_pass",    "credentials", "bearer_token",    "session_cookie",
        "sig",       "account_key",   "masterKeys"};
    return pick(kNames);
  }

 private:
  std::mt19937 random_;
};

// What each document also holds; all of it stays.
const std::vector<std::string> kKept{"GPU-5a4e0d1c-2f7e-4b0e-9a3f-2f0d7b1e8c11", "570.124.06",
                                     "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "4711",
                                     "nvidia-container-runtime"};

struct Form {
  const char* file;
  const char* joiners;  // what the form can hold between the parts of a secret
  std::function<std::string(const std::string& name, const std::vector<std::string>& parts,
                            const std::string& secret)>
      make;
};

std::string json_text(const std::string& text) { return nlohmann::json(text).dump(); }
std::string unicode_escapes(const std::string& text) {
  std::string out;
  for (const char c : text) out += "\\u" + hex_text(static_cast<unsigned char>(c), 4);
  return out;
}
std::string join_lines(const std::vector<std::string>& parts, const std::string& before) {
  std::string out;
  for (const auto& part : parts) out += before + part + "\n";
  return out;
}

const std::string kJsonRest =
    R"(,"uuid":"GPU-5a4e0d1c-2f7e-4b0e-9a3f-2f0d7b1e8c11","version":"570.124.06","count":4711,)"
    R"("paths":["/usr/lib/x86_64-linux-gnu/libcuda.so.1"],"runtime":{"name":"nvidia-container-runtime"}})";
const std::string kYamlRest =
    "uuid: GPU-5a4e0d1c-2f7e-4b0e-9a3f-2f0d7b1e8c11\nversion: 570.124.06\ncount: 4711\n"
    "paths: [/usr/lib/x86_64-linux-gnu/libcuda.so.1]\nruntime:\n  name: nvidia-container-runtime\n";
const std::string kTomlRest =
    "\n[plugins.\"io.containerd.cri.v1.runtime\"]\nuuid = 'GPU-5a4e0d1c-2f7e-4b0e-9a3f-2f0d7b1e8c11'\n"
    "version = \"570.124.06\"\ncount = 4711\npaths = [\n  \"/usr/lib/x86_64-linux-gnu/libcuda.so.1\", # a "
    "comment\n]\n"
    "runtimes.nvidia = { name = \"nvidia-container-runtime\" }\n";
const std::string kEnvRest =
    "UUID=GPU-5a4e0d1c-2f7e-4b0e-9a3f-2f0d7b1e8c11\nVERSION_ID=\"570.124.06\"\nexport COUNT=4711\n"
    "LIBRARY='/usr/lib/x86_64-linux-gnu/libcuda.so.1'\nARGS=\"--a --runtime=nvidia-container-runtime\"\n";

const std::string kEscaped = "\"\\'\n\t/ #:,;=&%@{}[]$!|>";

using Parts = std::vector<std::string>;
using Text = const std::string&;

std::vector<Form> json_forms() {
  return {
      {"a.json", kEscaped.c_str(),
       [](Text n, const Parts&, Text s) { return "{" + json_text(n) + ":" + json_text(s) + kJsonRest; }},
      {"a.json", kEscaped.c_str(),
       [](Text n, const Parts&, Text s) {
         return "{" + json_text(n) + ": \"" + unicode_escapes(s) + "\"" + kJsonRest;
       }},
      {"a.json", kEscaped.c_str(),
       [](Text n, const Parts&, Text s) {
         return "{\"" + unicode_escapes(n) + "\":[[" + json_text(s) + "],{\"x\":" + json_text(s) + "}]" +
                kJsonRest;
       }},
      {"a.json", kEscaped.c_str(),
       [](Text n, const Parts&, Text s) {
         return "{\"env\":[{\"name\":" + json_text(n) + ",\"value\":" + json_text(s) + "}]" + kJsonRest;
       }},
      {"a.json", kEscaped.c_str(),
       [](Text n, const Parts&, Text s) {
         return "{\"args\":[\"run\",\"--" + n + "\"," + json_text(s) + "]" + kJsonRest;
       }},
      {"a.json", kEscaped.c_str(),
       [](Text n, const Parts&, Text s) {
         return "{\"last-applied\":" + json_text("{" + json_text(n) + ":" + json_text(s) + "}") + kJsonRest;
       }},
      {"agent/node.json", kEscaped.c_str(),
       [](Text n, const Parts&, Text s) {
         return "{\"config\":" + json_text("version: v1\n" + n + ": " + quoted_text(s) + "\n") + kJsonRest;
       }},
      {"a.json", kEscaped.c_str(),
       [](Text, const Parts&, Text s) {
         return "{\"kind\":\"Secret\",\"data\":{\"x\":" + json_text(s) + "}" + kJsonRest;
       }},
      {"a.json", kEscaped.c_str(),
       [](Text, const Parts&, Text s) {
         return "{\"clusters\":[],\"users\":[{\"name\":\"me\",\"user\":{\"token\":" + json_text(s) +
                ",\"client-key-data\":" + json_text(s) + "}}]" + kJsonRest;
       }},
      {"a.json", "+/",
       [](Text, const Parts& p, Text s) {
         return "{\"url\":\"https://acc.blob.core.windows.net/c?sv=2022&sig=" + s +
                "%3D&se=1\",\"u\":\"https://me:" + p[0] + "@host/x\"" + kJsonRest;
       }},
  };
}

std::vector<Form> yaml_forms() {
  return {
      {"a.yaml", kEscaped.c_str(),
       [](Text n, const Parts&, Text s) {
         return n + ": " + quoted_text(s) + " # " + s.substr(0, s.find('\n')) + "\n" + kYamlRest;
       }},
      {"a.yaml", "\n",
       [](Text n, const Parts& p, Text) { return n + ": |\n" + join_lines(p, "  ") + kYamlRest; }},
      {"a.yaml", "\n",
       [](Text n, const Parts& p, Text) {
         return "deep:\n  er:\n    " + n + ": >-\n" + join_lines(p, "      ") + kYamlRest;
       }},
      {"a.yaml", "\n",
       [](Text n, const Parts& p, Text) {
         return n + ": " + p[0] + "\n  " + p[1] + "\n  " + p[2] + "\n" + kYamlRest;
       }},
      {"a.yaml", "\n",
       [](Text n, const Parts& p, Text) {
         return n + ": \"" + p[0] + "\n  " + p[1] + "\\\n  " + p[2] + "\"\n" + kYamlRest;
       }},
      {"a.yaml", "\n",
       [](Text n, const Parts& p, Text) { return n + ":\n" + join_lines(p, "- ") + kYamlRest; }},
      {"a.yaml", "\n",
       [](Text n, const Parts& p, Text) {
         return n + ":\n- - " + p[0] + "\n  - x: " + p[1] + "\n    y: [" + p[2] + "]\n" + kYamlRest;
       }},
      {"a.yaml", "\n",
       [](Text n, const Parts& p, Text) {
         return "a: {b: {" + n + ": [" + p[0] + ", {x: " + p[1] + "}]}, '" + n + "': " + p[2] + "}\n" +
                kYamlRest;
       }},
      {"a.yaml", "\n",
       [](Text n, const Parts& p, Text) {
         return "x: &a " + p[0] + "\n" + n + ": *a\ny: {<<: {" + n + ": " + p[1] + "}}\n? own-" + n +
                "\n: " + p[2] + "\n---\n" + kYamlRest;
       }},
      {"a.yaml", kEscaped.c_str(),
       [](Text n, const Parts&, Text s) {
         return "env:\n- name: " + n + "\n  value: " + quoted_text(s) + "\n" + kYamlRest;
       }},
      {"a.yaml", "\n",
       [](Text n, const Parts& p, Text) {
         return "# " + n + ": " + p[0] + "\n" + kYamlRest + "# " + p[1] + "\n#" + p[2];
       }},
      {"a.yaml", "\n",
       [](Text, const Parts& p, Text) {
         return "apiVersion: v1\nkind: Secret\nstringData:\n  a: " + p[0] + "\n  b: |\n    " + p[1] +
                "\ndata: {c: " + p[2] + "}\n" + kYamlRest;
       }},
      {"a.yaml", "\n",
       [](Text, const Parts& p, Text) {
         return "users:\n- name: me\n  user:\n    token: " + p[0] + "\n    client-key-data: " + p[1] +
                "\n    password: " + p[2] + "\n" + kYamlRest;
       }},
  };
}

std::vector<Form> toml_forms() {
  return {
      {"config.toml", kEscaped.c_str(),
       [](Text n, const Parts&, Text s) { return n + " = " + runtimes::toml::quote_toml(s) + kTomlRest; }},
      {"config.toml", "\n\"'",
       [](Text n, const Parts&, Text s) { return n + " = \"\"\"\n" + s + "\"\"\"" + kTomlRest; }},
      {"config.toml", "\n\"\\",
       [](Text n, const Parts&, Text s) { return n + " = '''" + s + "'''" + kTomlRest; }},
      {"config.toml", kEscaped.c_str(),
       [](Text n, const Parts&, Text s) {
         return n + " = [\n [\"x\", [" + runtimes::toml::quote_toml(s) + "]], # " + n + "\n]" + kTomlRest;
       }},
      {"config.toml", kEscaped.c_str(),
       [](Text n, const Parts&, Text s) {
         return "a = [{ b = { " + n + " = " + runtimes::toml::quote_toml(s) + " } }, { '" + n +
                "' = [{x = " + runtimes::toml::quote_toml(s) + "}] }]" + kTomlRest;
       }},
      {"config.toml", kEscaped.c_str(),
       [](Text n, const Parts&, Text s) {
         return "a.'" + n + "'.x = " + runtimes::toml::quote_toml(s) + "\n[registry.'gcr.io'.other-" + n +
                "]\nvalue = " + runtimes::toml::quote_toml(s) + kTomlRest;
       }},
      {"config.toml", "\n",
       [](Text n, const Parts& p, Text) {
         return "# " + n + " = " + p[0] + "\nx = 1 # " + p[1] + "\n[[a]] #" + p[2] + kTomlRest;
       }},
      {"a.conf", kEscaped.c_str(),
       [](Text n, const Parts&, Text s) {
         return "[crio]\nenv = [\"" + n + "\", " + runtimes::toml::quote_toml(s) + "]" + kTomlRest;
       }},
  };
}

std::vector<Form> line_forms() {
  return {
      {"a.env", " ,;=&%@#", [](Text n, const Parts&, Text s) { return n + "=\"" + s + "\"\n" + kEnvRest; }},
      {"a.env", ",;=&%@$!",
       [](Text n, const Parts&, Text s) { return "export " + n + "=" + s + "\n" + kEnvRest; }},
      {"a.env", "\n ", [](Text n, const Parts&, Text s) { return n + "='" + s + "'\n" + kEnvRest; }},
      {"a.env", "\n",
       [](Text n, const Parts& p, Text) {
         return n + "=" + p[0] + " \\\n  " + p[1] + " \\\n" + p[2] + "\n" + kEnvRest;
       }},
      {"a.service", " ,;&%@",
       [](Text n, const Parts&, Text s) {
         return "[Service]\nEnvironment=\"A=b\" \"" + n + "=" + s + "\"\n" + kEnvRest;
       }},
      {"a.service", ",;&%@",
       [](Text n, const Parts&, Text s) {
         return "[Service]\nExecStart=/usr/bin/x --" + n + " " + s + " --" + n + "=" + s + " --b\n" +
                kEnvRest;
       }},
      {"a.service", "\n",
       [](Text n, const Parts& p, Text) {
         return "# " + n + "=" + p[0] + "\n;" + p[1] + "\n  # " + p[2] + "\n" + kEnvRest;
       }},
      {"a.ini", " ,;=&%@",
       [](Text n, const Parts&, Text s) { return "[db]\n" + n + " = " + s + "\n" + kEnvRest; }},
  };
}

std::vector<Form> structured_forms() {
  std::vector<Form> all;
  for (const auto& forms : {json_forms(), yaml_forms(), toml_forms(), line_forms()})
    all.insert(all.end(), forms.begin(), forms.end());
  return all;
}

TEST(RedactFile, RemovesGeneratedSecretsAndKeepsTheRest) {
  Generator generator(20261123);
  constexpr int kRounds = 60;
  const auto forms = structured_forms();
  for (int round = 0; round < kRounds; ++round) {
    for (const Form& form : forms) {
      const auto parts = generator.secret_parts();
      const std::string joiners = form.joiners;
      const std::string secret =
          parts[0] + generator.joiner(joiners) + parts[1] + generator.joiner(joiners) + parts[2];
      const std::string text = form.make(generator.name(), parts, secret);
      const std::string clean = redact_file(form.file, text);
      for (const auto& part : parts)
        ASSERT_EQ(clean.find(part), std::string::npos) << form.file << ":\n" << text << "\n→\n" << clean;
      for (const auto& kept : kKept)
        ASSERT_NE(clean.find(kept), std::string::npos) << kept << " is lost of " << form.file << ":\n"
                                                       << text << "\n→\n"
                                                       << clean;
    }
  }
}

TEST(RedactFile, RemovesSecretsByFormFromFreeText) {
  Generator generator(7);
  for (int round = 0; round < 200; ++round) {
    const auto parts = generator.secret_parts();
    const std::string word = parts[0] + parts[1] + parts[2];
    const std::string long_word = word + "+/Aa1" + word;
    for (const std::string& line :
         {"https://user:" + parts[0] + "@host:8080/x",
          "https://user:" + parts[0] + "/" + parts[1] + "#" + parts[2] + "@host/x",
          "Authorization: Bearer " + word, "header 'Bearer " + word + "'", "header 'Basic " + word + "=='",
          "curl -u me:" + word + " x",
          "-----BEGIN EC PRIVATE KEY-----\n" + parts[0] + "\n" + parts[1] + "\n-----END EC PRIVATE KEY-----",
          "https://acc.blob.core.windows.net/c?sv=2022&sig=" + word + "%2B" + parts[0] + "&se=2030",
          "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=" + word + "/" + parts[0] +
              "==;EndpointSuffix=y",
          "key of AWS " + long_word.substr(0, 40) + " and AKIAABCDEFGHIJKLMNOP",
          "got {\"token\": \"a\\\"" + parts[0] + "\", \"x\": 1}",
          "got {\\\"token\\\": \\\"a\\\\\\\"" + parts[0] + "\\\", \\\"x\\\": 1}",
          "DB_PASS=" + parts[0] + "," + parts[1] + ";" + parts[2], "--encryption-key '" + parts[0] + "'",
          "password=\"" + parts[0] + " " + parts[1] + "\""}) {
      const std::string clean = redact_file("kernel.txt", "before\n" + line + "\nafter\n");
      for (const auto& part : parts) ASSERT_EQ(clean.find(part), std::string::npos) << line << " → " << clean;
      ASSERT_THAT(clean, HasSubstr("before\n"));
      ASSERT_THAT(clean, HasSubstr("\nafter\n"));
    }
  }
}

TEST(RedactFile, AcceptsEmptyNames) {
  EXPECT_EQ(redact_file("a.json", R"({"":{"":"a"},"pass":{"":"b"}})"),
            R"({"":{"":"a"},"pass":{"":"[redacted]"}})");
  EXPECT_EQ(redact_file("a.yaml", "\"\": a\n"), "\"\": a\n");
  EXPECT_EQ(redact_file("a.toml", "\"\" = 1\n"), "\"\" = 1\n");
}

TEST(RedactFile, RemovesUnknownFormatsAsAWhole) {
  for (const auto& [name, text] : std::initializer_list<std::pair<const char*, std::string>>{
           {"a.json", "{\"token\": \"hunter2\""},
           {"a.json", "{\"a\":" + std::string(100'000, '[') + "\"hunter2\""},
           {"a.toml", "password = hunter2\n"},
           {"a.yaml", "a: [hunter2\n"},
           {"a.yaml", "a: " + std::string(100'000, '[') + "hunter2"},
           {"a.conf", "hunter2\nand more\n"},
           {"a.service", "[Service]\nhunter2\n"},
           {"a.key", std::string("\x30\x82\x00hunter2", 10)},
           {"noname", "-----BEGIN SOMETHING-----\nhunter2\n"}}) {
    const std::string clean = redact_file(name, text);
    EXPECT_THAT(clean, Not(HasSubstr("hunter2"))) << name;
    EXPECT_THAT(clean, HasSubstr("[redacted] unknown format, ")) << name;
  }
}

// Only an item that is a name announces the secret behind it.
TEST(RedactFile, KeepsWhatStandsBesideARemovedVariable) {
  const std::string clean =
      redact_file("other.yaml", "containerEdits:\n  env: [API_TOKEN=hunter2, PLAIN=kept]\n");
  EXPECT_THAT(clean, Not(HasSubstr("hunter2")));
  EXPECT_THAT(clean, HasSubstr("PLAIN=kept"));
}

// Files of a node as they are. Nothing but comments and layout is lost.
TEST(RedactFile, KeepsSettings) {
  const std::string kubelet = R"(apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
  webhook:
    cacheAuthorizedTTL: 0s
clusterDNS:
  - 10.96.0.10
imagePullCredentialsVerificationPolicy: NeverVerifyPreloadedImages
registerWithTaints:
  - effect: NoSchedule
    key: dedicated
    value: gpu
rotateCertificates: true
serverTLSBootstrap: null
tlsPrivateKeyFile: /var/lib/kubelet/pki/kubelet.key
tokenBucket:
  burst: 10
topologyManagerPolicy: single-numa-node
)";
  EXPECT_EQ(redact_file("node/var/lib/kubelet/config.yaml", kubelet), kubelet);
  const std::string containerd = R"(version = 3
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
options = {BinaryName = "/usr/bin/nvidia-container-runtime", SystemdCgroup = true}
[plugins."io.containerd.cri.v1.images".registry]
config_path = "/etc/containerd/certs.d"
[plugins."io.containerd.cri.v1.images".image_decryption]
key_model = "node"
[stream_processors."io.containerd.ocicrypt.decoder.v1.tar"]
args = ["--decryption-keys-path", "/etc/containerd/ocicrypt/keys"]
env = ["OCICRYPT_KEYPROVIDER_CONFIG=/etc/containerd/ocicrypt/ocicrypt_keyprovider.conf"]
timeout = 1979-05-27T07:32:00Z
)";
  EXPECT_EQ(redact_file("node/etc/containerd/config.toml", containerd), containerd);
  const std::string docker = R"({
  "default-runtime": "nvidia",
  "runtimes": {
    "nvidia": {
      "args": [],
      "path": "nvidia-container-runtime"
    }
  },
  "max-concurrent-downloads": 3
}
)";
  EXPECT_EQ(redact_file("node/etc/docker/daemon.json", docker), docker);
  const std::string release = "NAME=\"Ubuntu\"\nVERSION_ID=\"24.04\"\nHOME_URL=\"https://www.ubuntu.com/\"\n";
  EXPECT_EQ(redact_file("node/etc/os-release", release), release);
  const std::string metrics =
      "# HELP gpulet_gpu_info x\ngpulet_gpu_info{gpu=\"0\",UUID=\"GPU-5a4e0d1c-2f7e-4b0e-9a3f-2f0d7b1e8c11\","
      "pci_bus_id=\"00000000:65:00.0\"} 1\n";
  EXPECT_EQ(redact_file("agent/metrics.txt", metrics), metrics);
  const std::string cmdline =
      "BOOT_IMAGE=/vmlinuz-6.8.0 root=UUID=1b2c-33 ro iommu=pt nvidia.NVreg_OpenRmEnableUnsupportedGpus=1\n";
  EXPECT_EQ(redact_file("node/proc/cmdline", cmdline), cmdline);
}

}  // namespace
}  // namespace gpulet::doctor
