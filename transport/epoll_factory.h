// transport/epoll_factory.h -- the base of lane factories that wait for the kernel: one epoll descriptor, a doorbell,
// and listeners that pause when something has run out.
//
// Memory: owns the descriptors of the listeners, not those of lanes. Thread: the factory's owner. Failures: a Status;
// what keeps connections from being accepted is a warning now and then, and trouble().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/sole_user.h"
#include "base/sparse_warning.h"
#include "transport/lane.h"

namespace canarynet {

class EpollFactory : public LaneFactory {
 public:
  void set_acceptor(LaneAcceptor* acceptor) override { acceptor_ = acceptor; }
  int poll_fd() const override { return epoll_.fd(); }
  std::string trouble() const override { return trouble_; }

 protected:
  static constexpr int kEventsPerPoll = 64;
  static constexpr int kAcceptsPerPoll = 16;  // per listener
  // Keys below those of lanes (LaneTable): listeners by index, and the doorbell.
  static constexpr std::uint64_t kDoorbellKey = (std::uint64_t{1} << 32) - 1;

  struct Listener {
    Descriptor socket;
    int rail = kControlRail;
    bool for_strays = false;
    Nanos paused_until;  // accept() failed for want of something; count 0: not paused
  };

  Status open_epoll();
  Status watch(int fd, std::uint32_t events, std::uint64_t key) const;
  // Before a close, too: while somebody else holds a copy of the descriptor (a forked child, of a bell also the peer),
  // the kernel goes on to report what happens to it, for a lane that is gone.
  void leave_epoll(const Descriptor& descriptor) const;
  void ring() const;
  Status add_listener(Descriptor socket, int rail);
  // Their places serve the next ones.
  void close_listeners(int rail);
  void pause(Listener& listener, Nanos now);
  void resume_listeners(Nanos now);
  Nanos next_resumption() const;
  void note_trouble(const Status& why, Nanos now);

  LaneAcceptor* acceptor_ = nullptr;
  Descriptor epoll_;
  Descriptor doorbell_;  // eventfd: makes poll_fd() readable when a lane waits for poll() and nothing else says so
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::string trouble_;
  SparseWarning trouble_warning_;
  std::size_t handled_ = 0;
  bool in_poll_ = false;
  SoleUser user_;
};

}  // namespace canarynet
