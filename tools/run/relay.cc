#include "tools/run/relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "base/random.h"
#include "tools/run/process.h"

namespace canarynet::run {
namespace {

constexpr int kBatch = 64;
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
// A send buffer that is full empties as the switch port drains.
constexpr std::int64_t kRetryNs = 100'000;
// struct virtio_net_hdr, whose C header does not compile as C++.
constexpr unsigned kVnetHeader = 10;

// Packet timestamps are in real time, so the relay uses that too.
std::int64_t real_now() {
  timespec t;
  ::clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
}

class Link {
 public:
  Link(const RelayLink& spec, int tx, std::uint64_t seed) : spec_(spec), random_(seed), tx_(tx) {}

  Status open() {
    frame_size_ = 2048;
    while (frame_size_ < static_cast<unsigned>(spec_.mtu) + 256) frame_size_ *= 2;
    const unsigned block = std::max(65536u, frame_size_);
    const unsigned blocks = (static_cast<unsigned>(spec_.slots) * frame_size_ + block - 1) / block;
    frames_ = blocks * (block / frame_size_);
    due_.resize(frames_);

    rx_ = Descriptor(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
    if (!rx_.open()) return system_error("packet socket", errno);
    const int on = 1, version = TPACKET_V2;
    ::setsockopt(rx_.fd(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on);
    if (::setsockopt(rx_.fd(), SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0 ||
        ::setsockopt(rx_.fd(), SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0) {
      return system_error("packet socket", errno);
    }
    tpacket_req ring{};
    ring.tp_block_size = block;
    ring.tp_block_nr = blocks;
    ring.tp_frame_size = frame_size_;
    ring.tp_frame_nr = frames_;
    if (::setsockopt(rx_.fd(), SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring) != 0)
      return system_error("PACKET_RX_RING", errno);
    void* memory =
        ::mmap(nullptr, static_cast<std::size_t>(block) * blocks, PROT_READ | PROT_WRITE, MAP_SHARED, rx_.fd(), 0);
    if (memory == MAP_FAILED) return system_error("mmap of the packet ring", errno);
    ring_ = static_cast<char*>(memory);

    sockaddr_ll from{};
    from.sll_family = to_.sll_family = AF_PACKET;
    from.sll_protocol = htons(ETH_P_ALL);
    from.sll_ifindex = static_cast<int>(::if_nametoindex(spec_.from.c_str()));
    to_.sll_ifindex = static_cast<int>(::if_nametoindex(spec_.to.c_str()));
    if (from.sll_ifindex == 0 || to_.sll_ifindex == 0 ||
        ::bind(rx_.fd(), reinterpret_cast<sockaddr*>(&from), sizeof from) != 0) {
      return system_error("relay from " + spec_.from + " to " + spec_.to, errno);
    }
    return {};
  }

  int fd() const { return rx_.fd(); }

  // Sends what is due; returns when the next frame is due, or kNever if the ring was found empty.
  std::int64_t serve(std::int64_t now) {
    for (;;) {
      int batch = 0;
      std::int64_t next = kNever;
      for (unsigned at = head_; batch < kBatch && (status_of(at) & TP_STATUS_USER); at = (at + 1) % frames_) {
        auto* header = frame(at);
        if (batch == drawn_) {
          due_[at] = last_due_ = due_of(*header);
          ++drawn_;
        }
        if (due_[at] > now) {
          next = due_[at];
          break;
        }
        iov_[batch] = {reinterpret_cast<char*>(header) + header->tp_mac - kVnetHeader,
                       header->tp_snaplen + kVnetHeader};
        cut_[batch] = header->tp_snaplen < header->tp_len;
        messages_[batch].msg_hdr = {};
        messages_[batch].msg_hdr.msg_name = &to_;
        messages_[batch].msg_hdr.msg_namelen = sizeof to_;
        messages_[batch].msg_hdr.msg_iov = &iov_[batch];
        messages_[batch].msg_hdr.msg_iovlen = 1;
        ++batch;
      }
      const int done = send(batch);
      for (int i = 0; i < done; ++i) release_head();
      if (done < batch) return now + kRetryNs;
      if (batch < kBatch) return next;
    }
  }

 private:
  tpacket2_hdr* frame(unsigned i) const {
    return reinterpret_cast<tpacket2_hdr*>(ring_ + static_cast<std::size_t>(i) * frame_size_);
  }
  std::uint32_t status_of(unsigned i) const { return __atomic_load_n(&frame(i)->tp_status, __ATOMIC_ACQUIRE); }
  void release_head() {
    __atomic_store_n(&frame(head_)->tp_status, static_cast<std::uint32_t>(TP_STATUS_KERNEL), __ATOMIC_RELEASE);
    head_ = (head_ + 1) % frames_;
    --drawn_;
  }

  std::int64_t due_of(const tpacket2_hdr& h) {
    const std::int64_t arrived = static_cast<std::int64_t>(h.tp_sec) * 1'000'000'000 + h.tp_nsec;
    std::int64_t delay = spec_.knobs->delay_ns.load(std::memory_order_relaxed);
    if (const std::int64_t jitter = spec_.knobs->jitter_ns.load(std::memory_order_relaxed); jitter > 0) {
      delay += static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(2 * jitter))) - jitter;
    }
    return std::max(last_due_, arrived + std::max<std::int64_t>(delay, 0));
  }

  // Returns how many frames, from the first, are dealt with: sent, or lost for good.
  int send(int batch) {
    int done = 0;
    while (done < batch) {
      if (cut_[done]) {
        lose(&done);
        continue;
      }
      int whole = done;
      while (whole < batch && !cut_[whole]) ++whole;
      const int n = ::sendmmsg(tx_, messages_ + done, static_cast<unsigned>(whole - done), MSG_DONTWAIT);
      if (n > 0) {
        done += n;
        spec_.knobs->relayed.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        break;
      } else if (errno != EINTR) {
        lose(&done);  // the device is down, or refused it: a wire would lose it too
      }
    }
    return done;
  }
  void lose(int* done) {
    ++*done;
    spec_.knobs->lost.fetch_add(1, std::memory_order_relaxed);
  }

  RelayLink spec_;
  Random random_;
  Descriptor rx_;
  const int tx_;
  sockaddr_ll to_{};
  char* ring_ = nullptr;
  unsigned frame_size_ = 0, frames_ = 0, head_ = 0;
  std::int64_t last_due_ = 0;
  int drawn_ = 0;  // frames from head_ on whose due time is in due_: jitter is drawn once for each
  std::vector<std::int64_t> due_;
  mmsghdr messages_[kBatch];
  iovec iov_[kBatch];
  bool cut_[kBatch];
};

// One socket sends for all links: closing a packet socket takes a while (a grace period of the kernel for each).
Result<Descriptor> open_sender() {
  Descriptor fd(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1, buffer = 64 << 20;
  // The virtio header carries the state of an unfinished checksum across; without it the receiver would drop the
  // packet.
  if (!fd.open() || ::setsockopt(fd.fd(), SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0) {
    return system_error("packet socket", errno);
  }
  ::setsockopt(fd.fd(), SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on);
  if (::setsockopt(fd.fd(), SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer) != 0) {
    ::setsockopt(fd.fd(), SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  }
  return fd;
}

}  // namespace

void run_relay(const std::vector<RelayLink>& specs, int ready_fd) {
  const auto sender = open_sender();
  Status status = sender.status();
  std::vector<std::unique_ptr<Link>> links;
  for (const auto& spec : specs) {
    if (!status.ok()) break;
    links.push_back(std::make_unique<Link>(spec, sender.value().fd(), links.size() + 1));
    status = links.back()->open();
  }
  if (!status.ok()) {
    write_all(ready_fd, status.text().data(), status.text().size());
    return;
  }
  ::close(ready_fd);
  ::prctl(PR_SET_TIMERSLACK, 1);
  sched_param priority{};
  priority.sched_priority = 10;
  ::sched_setscheduler(0, SCHED_FIFO, &priority);  // without the right to it, delays are less exact

  std::vector<pollfd> polled;
  for (;;) {
    std::int64_t next = kNever;
    polled.clear();
    for (const auto& link : links) {
      const std::int64_t due = link->serve(real_now());
      next = std::min(next, due);
      // A ring with packets in it would always poll readable.
      if (due == kNever) polled.push_back({link->fd(), POLLIN, 0});
    }
    timespec wait{1, 0};
    if (next != kNever) {
      const std::int64_t ns = std::clamp<std::int64_t>(next - real_now(), 0, 1'000'000'000);
      wait = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    }
    ::ppoll(polled.data(), polled.size(), &wait, nullptr);
  }
}

}  // namespace canarynet::run
