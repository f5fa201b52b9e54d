#include "runtime/host_lanes.h"

#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "discovery/host.h"
#include "discovery/reverse_path.h"
#include "topology/shared_subnet.h"

namespace canarynet {
namespace {

constexpr Nanos kTcpStaysBusy = 1_ms;
constexpr Nanos kTcpPollInterval = 20_us;

}  // namespace

std::size_t strangers_share() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return 128;
  return std::clamp<std::size_t>(files.rlim_cur / 8, 8, 1024);
}

Result<TcpOptions> tcp_options(const Settings& settings, const std::vector<Interface>& interfaces,
                               bool join_is_loopback) {
  TcpOptions t;
  t.congestion = settings.tcp_congestion;
  t.notsent_lowat = settings.tcp_notsent_lowat;
  t.allow_non_loopback = settings.insecure;
  if (!settings.uses("tcp")) return t;
  auto rails = choose_rails(settings, interfaces, join_is_loopback);
  if (!rails.ok()) return rails.status();
  auto pacing = pacing_of(settings, rails.value().size());
  if (!pacing.ok()) return pacing.status();
  t.rails = rails.take();
  t.pacing = pacing.take();
  for (std::size_t i = 0; i < t.pacing.size(); ++i) {
    if (t.pacing[i].count != 0) t.rails[i].nominal = t.pacing[i];
  }
  return t;
}

Result<std::unique_ptr<HostLanes>> HostLanes::create(const Settings& settings, bool has_peers,
                                                     const std::string& host_id, std::uint64_t name,
                                                     TcpLaneFactory& tcp) {
  for (const auto& note : tcp.notes()) log(LogLevel::kInfo, "%s", note.c_str());
  if (const std::string deaf = deaf_rail(tcp.rails()); !deaf.empty()) warn_of_shared_subnet(deaf);
  std::unique_ptr<HostLanes> lanes(new HostLanes(tcp));
  if (!has_peers || !settings.uses("shm")) return lanes;
  ShmOptions options;
  options.name = shared_memory_name(host_id, name);
  options.rail = static_cast<int>(lanes->rails_.size());
  options.arenas = &lanes->arenas_;
  options.ring_bytes = ring_bytes_for(static_cast<std::size_t>(settings.piece_bytes.count));
  options.strangers_max = strangers_share() / 2;  // each holds two descriptors
  Status status = lanes->add_shared_memory(options);
  if (status.ok()) return lanes;
  if (!settings.uses("tcp")) return status.wrap("CANARY_TRANSPORTS=" + settings.transports);
  log(LogLevel::kWarn, "no shared memory between processes of this host, TCP instead: %s", status.text().c_str());
  return lanes;
}

Status HostLanes::add_shared_memory(const ShmOptions& options) {
  auto made = ShmLaneFactory::create(options);
  if (!made.ok()) return made.status();
  shm::Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.open()) return system_error("epoll_create1", errno);
  for (const int half : {tcp_.poll_fd(), made.value()->poll_fd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(epoll.fd(), EPOLL_CTL_ADD, half, &event) != 0) return system_error("epoll_ctl", errno);
  }
  shm_ = made.take();
  epoll_ = std::move(epoll);
  rails_.push_back(shm_->rails()[0]);
  return {};
}

Status HostLanes::release(void* memory) {
  std::uint32_t id = 0;
  if (Status status = arenas_.release(memory, &id); !status.ok()) return status;
  if (shm_) shm_->arena_is_gone(id);
  return {};
}

Result<std::unique_ptr<Lane>> HostLanes::dial(int rail, const Address& to, LaneSink& sink) {
  if (to.family != Address::Family::kSharedMemory) return tcp_.dial(rail, to, sink);
  if (shm_) return shm_->dial(rail, to, sink);
  return Status(CANARY_INVALID_ARGUMENT, "shared memory is not among CANARY_TRANSPORTS: cannot dial " + to.to_string());
}

void HostLanes::set_acceptor(LaneAcceptor* acceptor) {
  tcp_.set_acceptor(acceptor);
  if (shm_) shm_->set_acceptor(acceptor);
}

std::size_t HostLanes::poll(Nanos now) {
  if (!shm_) return tcp_.poll(now);
  const std::size_t by_memory = shm_->poll(now);
  if (!asleep_ && now >= tcp_busy_until_ && now < next_tcp_poll_) return by_memory;
  asleep_ = false;
  const std::size_t by_tcp = tcp_.poll(now);
  if (by_tcp != 0) tcp_busy_until_ = now + kTcpStaysBusy;
  next_tcp_poll_ = now + kTcpPollInterval;
  return by_memory + by_tcp;
}

bool HostLanes::prepare_to_sleep() {
  asleep_ = true;
  const bool nothing_by_tcp = tcp_.prepare_to_sleep();
  return (!shm_ || shm_->prepare_to_sleep()) && nothing_by_tcp;
}

Nanos HostLanes::next_deadline() const {
  const Nanos tcp = tcp_.next_deadline();
  return shm_ ? std::min(tcp, shm_->next_deadline()) : tcp;
}

std::string HostLanes::trouble() const {
  const std::string tcp = tcp_.trouble();
  return tcp.empty() && shm_ ? shm_->trouble() : tcp;
}

std::uint64_t HostLanes::kernel_tx_bytes(int rail) const {
  return static_cast<std::size_t>(rail) < tcp_.rails().size() ? tcp_.kernel_tx_bytes(rail) : 0;
}

}  // namespace canarynet
