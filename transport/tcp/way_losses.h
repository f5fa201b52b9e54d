// transport/tcp/way_losses.h -- what the kernel counts of a TCP connection's progress and losses, and which congestion
// control it offers for a way that loses.
#pragma once

#include <cstdint>
#include <string>

#include "transport/loss_watch.h"

namespace canarynet {

// Asks about a connected socket; false where the kernel does not tell. One system call.
bool ask_losses(int fd, WayLosses* out);
// The bytes that the peer's kernel has acknowledged, and those that came, read or not; false and untouched where the
// kernel does not tell. One system call.
bool ask_progress(int fd, std::uint64_t* acknowledged, std::uint64_t* received);
// The congestion control that a socket uses; "" where the kernel does not tell.
std::string congestion_of(int fd);
// Whether this process may choose bbr for its sockets, without a module being loaded for it. Reads a file.
bool may_use_bbr();
// Advice about a way that loses so much, as a sentence for the log.
std::string loss_advice(const WayLosses& losses, const std::string& congestion);

}  // namespace canarynet
