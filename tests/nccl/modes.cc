#include "tests/nccl/modes.h"

#include <cmath>
#include <cstdio>

namespace nccltest {

std::string Json::quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

Json& Json::raw(const std::string& name, const std::string& json) {
  members_ += (members_.empty() ? "" : ", ") + quoted(name) + ": " + json;
  return *this;
}

Json& Json::add(const std::string& name, double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", std::isfinite(value) ? value : -1.0);
  return raw(name, text);
}
Json& Json::add(const std::string& name, std::uint64_t value) { return raw(name, std::to_string(value)); }
Json& Json::add(const std::string& name, int value) { return raw(name, std::to_string(value)); }
Json& Json::add(const std::string& name, const std::string& text) { return raw(name, quoted(text)); }

Loaded load(const Options& options) {
  Loaded loaded;
  std::string error;
  const std::string& path = options.plugin_of(options.rank);
  loaded.file = PluginFile::open(path, &error);
  if (!loaded.file) {
    fail("dlopen: %s", error.c_str());
    return loaded;
  }
  loaded.net = loaded.file->net(options.version, &error);
  if (!loaded.net) {
    fail("%s %s", path.c_str(), error.c_str());
    return loaded;
  }
  if (const std::string missing = loaded.net->missing_member(); !missing.empty()) {
    fail("ncclNetPlugin_v%d: %s is NULL", loaded.net->version(), missing.c_str());
    loaded.net.reset();
  }
  return loaded;
}

int finish_mode(const Options& options, Json& json) {
  json.add("failures", failures());
  std::string texts, warned;
  for (const std::string& text : failure_texts()) {
    if (texts.size() < 4000) texts += (texts.empty() ? "" : ", ") + Json::quoted(text);
  }
  for (const std::string& text : warnings()) {
    if (warned.size() < 4000) warned += (warned.empty() ? "" : ", ") + Json::quoted(text);
  }
  json.raw("failed", "[" + texts + "]").raw("warnings", "[" + warned + "]");
  Json whole;
  whole.add("mode", options.mode).add("rank", options.rank);
  std::string line = whole.text();
  line.pop_back();
  // One write, since the ranks share the output.
  line += ", " + json.text().substr(1) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
  return failures() == 0 ? 0 : 1;
}

int run_mode(const Options& options) {
  const std::pair<const char*, int (*)(const Options&)> modes[] = {{"correctness", correctness_mode},
                                                                   {"goodput", goodput_mode},
                                                                   {"latency", latency_mode},
                                                                   {"abort", abort_mode},
                                                                   {"churn", churn_mode},
                                                                   {"foreign", foreign_mode},
                                                                   {"mixed", mixed_mode},
                                                                   {"kill", kill_mode},
                                                                   {"stop", stop_mode},
                                                                   {"tuner", tuner_mode},
                                                                   {"list", list_mode}};
  for (const auto& [name, run] : modes) {
    if (options.mode == name) return run(options);
  }
  return 2;
}

}  // namespace nccltest
