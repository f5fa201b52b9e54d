// embed/connections_test_util.h -- for tests: endpoints on loopback, connections between them, messages with known
// bytes.
#pragma once

#include <array>
#include <memory>

#include "embed/job_test_util.h"

namespace canarynet::test {

using Handle = std::array<std::byte, CANARY_HANDLE_BYTES>;

class TestEndpoint {
 public:
  explicit TestEndpoint(const Strings& settings = {}) {
    const Strings all = Strings{"rails=lo"} + settings;
    std::vector<const char*> pointers;
    for (const std::string& s : all) pointers.push_back(s.c_str());
    canary_config c = CANARY_CONFIG_INIT;
    c.settings = pointers.data();
    c.settings_count = pointers.size();
    EXPECT_EQ(canary_endpoint_create(&c, &raw), CANARY_OK) << last_error().message;
  }
  TestEndpoint(const TestEndpoint&) = delete;
  ~TestEndpoint() { destroy(); }
  void destroy() {
    if (raw == nullptr) return;
    EXPECT_EQ(canary_endpoint_destroy(raw), CANARY_OK);
    raw = nullptr;
  }
  canary_listener* listen(Handle* handle) {
    canary_listener* l = nullptr;
    EXPECT_EQ(canary_listen(raw, handle->data(), &l), CANARY_OK) << last_error().message;
    return l;
  }
  canary_endpoint* raw = nullptr;
};

// Turns of a poll loop until it is done; false after ten seconds (minutes where everything is slow).
template <typename Done>
bool poll_until(Done done) {
  const auto began = std::chrono::steady_clock::now();
  while (!done()) {
    if (seconds_since(began) > (sanitized() ? 100 : 20)) return false;
    std::this_thread::yield();
  }
  return true;
}

struct Ends {
  canary_connection* a = nullptr;  // connected
  canary_connection* b = nullptr;  // accepted
};

inline canary_connection* connect(TestEndpoint& from, const Handle& handle) {
  canary_connection* c = nullptr;
  canary_status s = CANARY_WOULD_BLOCK;
  EXPECT_TRUE(poll_until([&] { return (s = canary_connect(from.raw, handle.data(), &c)) != CANARY_WOULD_BLOCK; }));
  EXPECT_EQ(s, CANARY_OK) << last_error().message;
  return c;
}
inline canary_connection* accept(canary_listener* listener) {
  canary_connection* c = nullptr;
  EXPECT_TRUE(poll_until([&] { return canary_accept(listener, &c) == CANARY_OK; }));
  return c;
}
inline Ends join_ends(TestEndpoint& from, TestEndpoint& to) {
  Handle handle;
  canary_listener* l = to.listen(&handle);
  Ends e;
  e.a = connect(from, handle);
  e.b = accept(l);
  EXPECT_EQ(canary_close_listener(l), CANARY_OK);
  return e;
}

inline canary_request* send(canary_connection* c, const void* data, std::size_t bytes, std::uint32_t tag = 0) {
  canary_request* r = nullptr;
  canary_status s = CANARY_WOULD_BLOCK;
  EXPECT_TRUE(poll_until([&] { return (s = canary_isend(c, data, bytes, tag, nullptr, &r)) != CANARY_WOULD_BLOCK; }));
  EXPECT_EQ(s, CANARY_OK) << last_error().message;
  return r;
}
inline canary_request* receive(canary_connection* c, void* data, std::size_t bytes) {
  canary_request* r = nullptr;
  canary_status s = CANARY_WOULD_BLOCK;
  EXPECT_TRUE(
      poll_until([&] { return (s = canary_irecv(c, 1, &data, &bytes, nullptr, nullptr, &r)) != CANARY_WOULD_BLOCK; }));
  EXPECT_EQ(s, CANARY_OK) << last_error().message;
  return r;
}
inline canary_status wait(canary_request* r, std::size_t* bytes = nullptr) {
  canary_status s = CANARY_WOULD_BLOCK;
  EXPECT_TRUE(poll_until([&] { return (s = canary_test(r, bytes)) != CANARY_WOULD_BLOCK; }));
  return s;
}

inline std::vector<std::uint8_t> bytes_of(std::uint64_t seed, std::size_t size) {
  std::vector<std::uint8_t> out(size);
  std::uint64_t x = seed * 0x9e3779b97f4a7c15ull + 1;
  for (auto& b : out) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    b = static_cast<std::uint8_t>(x);
  }
  return out;
}

}  // namespace canarynet::test
