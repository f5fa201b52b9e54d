// base/status.h -- operating failures as values: Status and Result<T>.
//
// A Status is OK or a code with a text and, if known, who and where (ErrorDetail). Context is added on the way up by
// `wrap`. Would-block is a code, not an error text. Not thread-safe; copying allocates, so it stays off the data path.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/units.h"
#include "canarynet/types.h"

namespace canarynet {

// Where a failure happened; -1, 0 and "" mean unknown or not applicable.
struct ErrorDetail {
  int rank = -1;            // the culprit's rank in the world (never the reporter's)
  std::string host;         // the culprit's host name
  std::string device;       // NIC or NICs concerned, both ends where known: "nic0>nic0"
  std::uint32_t group = 0;  // flow number of the group
  std::uint32_t epoch = 0;
  std::int64_t op = -1;  // number of the operation in its group
  std::string op_name;   // "all_reduce"
  std::string phase;     // "join", "entry", "exchange"
  Nanos elapsed;         // since the operation (or the wait) began
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(canary_status code, std::string text) : Status(code, std::move(text), ErrorDetail{}) {}
  Status(canary_status code, std::string text, ErrorDetail detail)
      : code_(code), info_(std::make_shared<Info>(Info{std::move(text), std::move(detail)})) {}

  bool ok() const { return code_ == CANARY_OK; }
  canary_status code() const { return code_; }
  const std::string& text() const;
  const ErrorDetail& detail() const;
  // The same failure with "context: " in front of its text.
  Status wrap(const std::string& context) const;
  // "MISMATCH: …": what a user reads.
  std::string to_string() const;

 private:
  struct Info {
    std::string text;
    ErrorDetail detail;
  };
  canary_status code_ = CANARY_OK;
  std::shared_ptr<const Info> info_;
};

// "MISMATCH" for CANARY_MISMATCH.
const char* name_of(canary_status code);

// CANARY_LIMIT, "out of memory". It is made when the library is loaded, and its copies allocate nothing.
const Status& no_memory();

// errno as a CANARY_SYSTEM status: "what: No such file or directory".
Status system_error(const std::string& what, int error_number);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Status status) : state_(std::move(status)) {
    CANARY_CHECK(!std::get<Status>(state_).ok(), "a Result without a value needs a failure");
  }
  bool ok() const { return std::holds_alternative<T>(state_); }
  T& value() { return std::get<T>(state_); }
  const T& value() const { return std::get<T>(state_); }
  T take() { return std::move(std::get<T>(state_)); }
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace canarynet
