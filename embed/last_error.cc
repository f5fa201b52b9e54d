// The last error of a thread, the reading of settings, and the way of log lines: shared by the families of C calls.
#include "embed/last_error.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <mutex>
#include <new>

#include "base/environment.h"

using namespace canarynet;

namespace {

struct LastError {
  canary_status code = CANARY_OK;
  std::string message;
  ErrorDetail detail;
};
thread_local LastError t_error;

// The sizes that canary_config has had, oldest first: a caller built with an older header fills the front, the rest
// keeps its default.
constexpr std::size_t kConfigSizes[] = {offsetof(canary_config, unique_id), offsetof(canary_config, local_ranks),
                                        sizeof(canary_config)};

}  // namespace

Status canarynet::copy_config(const canary_config* config, canary_config* out) {
  if (config == nullptr) return {};
  const std::size_t size = config->struct_size;
  if (std::find(std::begin(kConfigSizes), std::end(kConfigSizes), size) == std::end(kConfigSizes)) {
    return Status(CANARY_INVALID_ARGUMENT, "canary_config.struct_size is " + std::to_string(size) + ", expected " +
                                               std::to_string(sizeof(canary_config)) + " (use CANARY_CONFIG_INIT)");
  }
  std::memcpy(out, config, size);
  return {};
}

canary_status canarynet::report(const Status& status) {
  if (status.ok()) return CANARY_OK;
  t_error.code = status.code();
  try {
    t_error.message = status.to_string();
    t_error.detail = status.detail();
  } catch (const std::bad_alloc&) {  // the code has to do
    t_error.message.clear();
    t_error.detail = ErrorDetail();
  }
  return status.code();
}

Status canarynet::read_settings(const canary_config* config, Settings* out) {
  if (Status s = write_log_as_environment_says(); !s.ok()) return s;
  warn_of_strange_variables();
  canary_config c = CANARY_CONFIG_INIT;
  if (Status s = copy_config(config, &c); !s.ok()) return s;
  auto settings = Settings::from_environment();
  if (!settings.ok()) return settings.status();
  *out = settings.take();
  if (c.join != nullptr) out->join = c.join;
  if (c.settings == nullptr && c.settings_count != 0)
    return Status(CANARY_INVALID_ARGUMENT, "canary_config.settings is NULL, settings_count is not 0");
  for (std::size_t i = 0; i < c.settings_count; ++i) {
    const std::string line = c.settings[i] != nullptr ? c.settings[i] : "";
    const auto equals = line.find('=');
    if (equals == std::string::npos)
      return Status(CANARY_INVALID_ARGUMENT, "canary_config.settings: \"" + line + "\" is not name=value");
    if (Status s = out->set(line.substr(0, equals), line.substr(equals + 1)); !s.ok()) return s;
  }
  if (c.local_ranks != 0) {
    if (Status s = out->set("local_ranks", std::to_string(c.local_ranks)); !s.ok())
      return s.wrap("canary_config.local_ranks");
  }
  return out->check();
}

extern "C" {

CANARY_API canary_status canary_last_error(canary_error* error) {
  if (error == nullptr || error->struct_size != sizeof(canary_error)) return CANARY_INVALID_ARGUMENT;
  const ErrorDetail& d = t_error.detail;
  error->code = t_error.code;
  error->message = t_error.message.c_str();
  error->op = d.op_name.c_str();
  error->op_number = d.op;
  error->group = d.group;
  error->epoch = d.epoch;
  error->rank = d.rank;
  error->host = d.host.c_str();
  error->device = d.device.c_str();
  error->phase = d.phase.c_str();
  error->elapsed_ns = static_cast<uint64_t>(d.elapsed.count);
  return CANARY_OK;
}

CANARY_API const char* canary_status_name(canary_status status) { return name_of(status); }

CANARY_API void canary_set_log(canary_log_fn fn, void* user, int level) {
  static std::mutex mutex;
  static canary_log_fn s_fn;
  if (in_log_sink()) return;
  const std::lock_guard lock(mutex);
  set_log_sink(nullptr, nullptr, LogLevel::kError);  // nobody is in the one before any more
  s_fn = fn;
  if (fn == nullptr) return;
  set_log_sink([](void* context, LogLevel l,
                  std::string_view line) { s_fn(context, static_cast<int>(l), line.data(), line.size()); },
               user, static_cast<LogLevel>(level));
}

CANARY_API const char* canary_version(void) { return CANARYNET_VERSION; }

}  // extern "C"
