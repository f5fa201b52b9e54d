#include "runtime/machine_costs.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "compress/codec.h"
#include "kernels/reduce.h"
#include "transport/tcp/socket.h"

namespace canarynet {
namespace {

constexpr double kUsualPost = 10e-6;  // in kernel TCP, as the static choice has it

// Both ends of a connection over loopback.
std::optional<std::pair<Socket, Socket>> connected_pair() {
  const Result<Socket> listener = listen_on(Address::ipv4(127, 0, 0, 1), {});
  Result<Socket> dialled = make_stream_socket(Address::Family::kIPv4);
  if (!listener.ok() || !dialled.ok()) return std::nullopt;
  const SocketAddress to = to_socket_address(local_address(listener.value().fd()), "");
  if (connect(dialled.value().fd(), to.get(), to.length) != 0 && errno != EINPROGRESS) return std::nullopt;
  const int on = 1;  // as lanes have it
  if (setsockopt(dialled.value().fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) return std::nullopt;
  pollfd ready{listener.value().fd(), POLLIN, 0};
  if (poll(&ready, 1, 20) != 1) return std::nullopt;
  Socket accepted(accept4(listener.value().fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  // Anybody on this machine may have dialled.
  if (accepted.fd() < 0 || peer_address(accepted.fd()) != local_address(dialled.value().fd())) return std::nullopt;
  return std::pair(dialled.take(), std::move(accepted));
}

std::optional<double> measure_post() {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kBytes = 128;  // a header and an acknowledgement or two
  const auto ends = connected_pair();
  if (!ends) return std::nullopt;
  std::array<double, 64> took{};
  std::array<std::byte, 2 * kBytes> message{};
  for (double& seconds : took) {
    const auto before = Clock::now();
    if (send(ends->first.fd(), message.data(), kBytes, MSG_NOSIGNAL) != static_cast<ssize_t>(kBytes))
      return std::nullopt;
    seconds = std::chrono::duration<double>(Clock::now() - before).count();
    while (recv(ends->second.fd(), message.data(), message.size(), 0) > 0) {
    }
  }
  // The median: the first ones find nothing in the caches, and some are disturbed.
  std::nth_element(took.begin(), took.begin() + took.size() / 2, took.end());
  return took[took.size() / 2];
}

}  // namespace

MachineCosts measure_machine_costs() {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kElements = 32 * 1024;  // two pieces of the usual size: no cache of one core holds much more
  constexpr auto kSpan = std::chrono::milliseconds(1);
  std::vector<float> sum(kElements, 1), other(kElements, 2);
  const ReduceFn add = reduce_kernel(CANARY_F32, CANARY_SUM);
  const DenormalGuard guard;
  // The least of several: whatever disturbs one run makes it longer.
  double least = 0;
  for (const auto began = Clock::now(); Clock::now() - began < kSpan;) {
    const auto before = Clock::now();
    add(sum.data(), sum.data(), other.data(), kElements);
    const double took = std::chrono::duration<double>(Clock::now() - before).count();
    least = least == 0 ? took : std::min(least, took);
  }
  const std::optional<double> post = measure_post();
  return {least / (kElements * sizeof(float)), post.value_or(kUsualPost), post.has_value()};
}

CodecSpeed measure_codec(const CodecSpec& spec) {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kElements = 256 * 1024;
  constexpr double kBytes = kElements * sizeof(float);
  std::vector<float> values(kElements);
  // A sum of uniform numbers is normal enough; no two values are alike.
  std::uint32_t dice = 1;
  for (float& v : values) {
    std::uint32_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += (dice = dice * 1664525u + 1013904223u) >> 12;
    v = (static_cast<float>(sum) - 2097152.0F) * 1e-8F;
  }
  const Coding coding{spec, {.count = kElements}};
  std::vector<std::byte> workspace(workspace_bytes(coding));
  std::vector<std::uint8_t> encoded(whole_bytes_max(coding));
  const DenormalGuard guard;
  const auto seconds = [](auto since) { return std::chrono::duration<double>(Clock::now() - since).count(); };
  CodecSpeed least;
  for (int run = 0; run < 2; ++run) {
    auto began = Clock::now();
    const auto bytes = encode_whole(coding, values.data(), workspace, {}, encoded);
    const double encode = seconds(began) / kBytes;
    CANARY_CHECK(bytes.ok(), "finite values are encoded");
    began = Clock::now();
    const Status decoded = decode_whole(coding, {encoded.data(), bytes.value()}, workspace, values.data(), false);
    const double decode = seconds(began) / kBytes;
    CANARY_CHECK(decoded.ok(), "what was encoded decodes");
    least.encode = run == 0 ? encode : std::min(least.encode, encode);
    least.decode = run == 0 ? decode : std::min(least.decode, decode);
  }
  return least;
}

}  // namespace canarynet
