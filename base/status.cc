#include "base/status.h"

#include <cerrno>
#include <cstring>

namespace canarynet {

const char* name_of(canary_status code) {
  switch (code) {
    case CANARY_OK:
      return "OK";
    case CANARY_WOULD_BLOCK:
      return "WOULD_BLOCK";
    case CANARY_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case CANARY_INVALID_SETTING:
      return "INVALID_SETTING";
    case CANARY_INSECURE:
      return "INSECURE";
    case CANARY_SYSTEM:
      return "SYSTEM";
    case CANARY_LIMIT:
      return "LIMIT";
    case CANARY_VERSION:
      return "VERSION";
    case CANARY_JOIN:
      return "JOIN";
    case CANARY_MISMATCH:
      return "MISMATCH";
    case CANARY_UNREACHABLE:
      return "UNREACHABLE";
    case CANARY_NO_PATH:
      return "NO_PATH";
    case CANARY_PEER_DIED:
      return "PEER_DIED";
    case CANARY_PEER_SILENT:
      return "PEER_SILENT";
    case CANARY_COORDINATOR_LOST:
      return "COORDINATOR_LOST";
    case CANARY_PARTITIONED:
      return "PARTITIONED";
    case CANARY_ENTRY_TIMEOUT:
      return "ENTRY_TIMEOUT";
    case CANARY_EXCHANGE_TIMEOUT:
      return "EXCHANGE_TIMEOUT";
    case CANARY_DEADLINE:
      return "DEADLINE";
    case CANARY_ABORTED:
      return "ABORTED";
    case CANARY_CLOSED:
      return "CLOSED";
    case CANARY_INTERNAL:
      return "INTERNAL";
  }
  return "UNKNOWN";
}

const std::string& Status::text() const {
  static const std::string kNone;
  return info_ ? info_->text : kNone;
}

const ErrorDetail& Status::detail() const {
  static const ErrorDetail kNone;
  return info_ ? info_->detail : kNone;
}

Status Status::wrap(const std::string& context) const {
  if (ok()) return *this;
  return Status(code_, context + ": " + text(), detail());
}

std::string Status::to_string() const {
  if (ok()) return "OK";
  return std::string(name_of(code_)) + ": " + text();
}

namespace {

const Status& g_no_memory = *new Status(CANARY_LIMIT, "out of memory");  // read by threads that outlive static objects

}  // namespace

const Status& no_memory() { return g_no_memory; }

Status system_error(const std::string& what, int error_number) {
  char buffer[128];
  const char* remedy = error_number == EMFILE   ? ": raise ulimit -n"
                       : error_number == ENFILE ? ": raise fs.file-max"
                                                : "";
  return Status(CANARY_SYSTEM, what + ": " + strerror_r(error_number, buffer, sizeof buffer) + remedy);
}

}  // namespace canarynet
