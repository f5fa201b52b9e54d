// canarynet/connections.hpp -- C++20 over the connections of the C ABI: Endpoint, Connection and Request are messages
// without a job.
//
// canarynet.hpp includes this header, and its rules hold here: handles clean up, failures throw Error. Threads: as
// canarynet.h says of each call.
#pragma once

#include "canarynet/canarynet.hpp"

namespace canarynet {
inline namespace v0 {

// A message in flight. It can be moved. Dropping one that is not done loses only its result: the buffer stays borrowed
// until the message is done or its Connection ends.
class [[nodiscard]] Request {
 public:
  Request() = default;
  explicit Request(canary_request* handle) : handle_(handle) {}
  Request(Request&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Request& operator=(Request&& other) noexcept {
    handle_ = std::exchange(other.handle_, nullptr);
    return *this;
  }
  bool pending() const { return handle_ != nullptr; }
  // Returns the message's length in bytes once it is done, nothing while it is under way. Throws its failure.
  std::optional<std::size_t> test() {
    std::size_t bytes = 0;
    if (handle_ == nullptr) return bytes;
    const canary_status status = canary_test(handle_, &bytes);
    if (status == CANARY_WOULD_BLOCK) return std::nullopt;
    handle_ = nullptr;
    check(status);
    return bytes;
  }

 private:
  canary_request* handle_ = nullptr;
};

// Ordered messages both ways, for one thread at a time. The destructor closes it, which frees the buffers of all its
// requests.
class Connection {
 public:
  explicit Connection(canary_connection* handle) : handle_(handle) {}
  Connection(Connection&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Connection& operator=(Connection&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Connection() {
    if (handle_ != nullptr) (void)canary_close(handle_);
  }
  canary_connection* handle() const { return handle_; }
  // See canary_abort_connection().
  void abort(const std::string& why) { check(canary_abort_connection(handle_, why.c_str())); }
  // Returns nothing if there is no room now: try again.
  template <InputBuffer Data>
  std::optional<Request> send(const Data& data, std::uint32_t tag = 0, const OpOptions& options = {}) {
    canary_request* request = nullptr;
    const canary_op_options how = detail::raw(options);
    const std::size_t bytes = std::ranges::size(data) * sizeof(detail::ElementOf<Data>);
    const canary_status status =
        canary_isend_with(handle_, std::ranges::data(data), bytes, tag, nullptr, &how, &request);
    return made(status, request);
  }
  // The message may be shorter than the buffer.
  template <OutputBuffer Data>
  std::optional<Request> receive(Data&& data, const OpOptions& options = {}) {
    canary_request* request = nullptr;
    const canary_op_options how = detail::raw(options);
    void* const at = std::ranges::data(data);
    const std::size_t bytes = std::ranges::size(data) * sizeof(detail::ElementOf<Data>);
    const canary_status status = canary_irecv_with(handle_, 1, &at, &bytes, nullptr, nullptr, &how, &request);
    return made(status, request);
  }

 private:
  static std::optional<Request> made(canary_status status, canary_request* request) {
    if (status == CANARY_WOULD_BLOCK) return std::nullopt;
    check(status);
    return Request(request);
  }
  canary_connection* handle_;
};

using ConnectionHandle = std::array<std::byte, CANARY_HANDLE_BYTES>;

// An engine of its own beside any job. Everything made from it ends with it.
class Endpoint {
 public:
  class Listener {
   public:
    Listener(Listener&& other) noexcept : address(other.address), handle_(std::exchange(other.handle_, nullptr)) {}
    Listener& operator=(Listener&&) = delete;
    ~Listener() {
      if (handle_ != nullptr) (void)canary_close_listener(handle_);
    }
    // Returns nothing if nobody has connected yet.
    std::optional<Connection> accept() {
      canary_connection* connection = nullptr;
      const canary_status status = canary_accept(handle_, &connection);
      if (status == CANARY_WOULD_BLOCK) return std::nullopt;
      check(status);
      return Connection(connection);
    }
    ConnectionHandle address{};  // for connect(), in any process

   private:
    friend class Endpoint;
    Listener() = default;
    canary_listener* handle_ = nullptr;
  };
  // A connection in the making. It can be moved; its destructor gives it up.
  class Connecting {
   public:
    Connecting(Connecting&& other) noexcept
        : endpoint_(std::exchange(other.endpoint_, nullptr)),
          address_(other.address_),
          handle_(std::exchange(other.handle_, nullptr)),
          failure_(std::move(other.failure_)) {}
    Connecting& operator=(Connecting&&) = delete;
    ~Connecting() {
      if (handle_ != nullptr) (void)canary_close(handle_);
    }
    // Returns nothing while it is not made: ask again. Throws if it can't be made, again and again, and once it was
    // returned.
    std::optional<Connection> test() {
      if (failure_) throw *failure_;
      const canary_status status = canary_connect(endpoint_, address_.data(), &handle_);
      if (status == CANARY_WOULD_BLOCK) return std::nullopt;
      if (status != CANARY_OK) throw failure_.emplace(Error::last(status));
      endpoint_ = nullptr;
      return Connection(std::exchange(handle_, nullptr));
    }

   private:
    friend class Endpoint;
    Connecting(canary_endpoint* endpoint, const ConnectionHandle& address) : endpoint_(endpoint), address_(address) {}
    canary_endpoint* endpoint_;
    ConnectionHandle address_;
    canary_connection* handle_ = nullptr;
    std::optional<Error> failure_;
  };

  // Each setting is "name=value" (docs/settings.md) and goes over the environment.
  explicit Endpoint(const std::vector<std::string>& settings = {}) {
    std::vector<const char*> pointers;
    for (const auto& setting : settings) pointers.push_back(setting.c_str());
    canary_config config = CANARY_CONFIG_INIT;
    config.settings = pointers.data();
    config.settings_count = pointers.size();
    check(canary_endpoint_create(&config, &handle_));
  }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  ~Endpoint() { (void)canary_endpoint_destroy(handle_); }
  canary_endpoint* handle() const { return handle_; }
  Listener listen() {
    Listener out;
    check(canary_listen(handle_, out.address.data(), &out.handle_));
    return out;
  }
  Connecting connect(const ConnectionHandle& address) { return Connecting(handle_, address); }
  // The NICs that the endpoint uses, and their counters since it was made, in the same order; counters of shared memory
  // come behind them.
  std::vector<canary_rail> rails() const {
    return detail::listed<canary_rail>([&](auto* list, std::size_t room, std::size_t* count) {
      check(canary_endpoint_rails(handle_, list, room, count));
    });
  }
  std::vector<canary_nic_stats> nics() const {
    return detail::listed<canary_nic_stats>([&](auto* list, std::size_t room, std::size_t* count) {
      check(canary_endpoint_stats(handle_, list, room, count));
    });
  }
  // For event loops: readable when messages or connections have completed, until drain(); see canary_endpoint_fd.
  int fd() const {
    int fd = -1;
    check(canary_endpoint_fd(handle_, &fd));
    return fd;
  }
  // Call it before test() and accept() on anything pending.
  void drain() const { check(canary_endpoint_drain(handle_)); }

 private:
  canary_endpoint* handle_ = nullptr;
};

}  // namespace v0
}  // namespace canarynet
