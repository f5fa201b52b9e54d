#include "engine/stall_watch.h"

#include <algorithm>

#include "base/duration_text.h"
#include "engine/endpoint_link.h"

namespace canarynet {
namespace {

// The oldest request of a flow in either direction, which all others wait behind.
struct Oldest {
  const Connection* connection = nullptr;
  const MessageRequest* request = nullptr;
  Nanos since = Nanos::max();
};

void look_at(const Connection& c, const MessageList& list, Oldest* oldest) {
  const MessageRequest* const r = list.head;
  if (r == nullptr) return;
  const Nanos since = std::max(r->last_progress, c.end.last_progress);
  if (since < oldest->since) *oldest = {&c, r, since};
}

std::string what_for(const EndpointLink& link, const MessageEnd& flow, const MessageRequest& r) {
  if (link.channel->paths_up() == 0) return "no link is up";
  if (r.sends && r.pieces_done == 0 && r.number > flow.credited && !r.eager)
    return "the peer has not posted its receive";
  if (r.sends) return "the peer has not acknowledged the rest";
  return r.pieces_done == 0 ? "the peer has not sent it" : "the peer has not sent the rest";
}

}  // namespace

std::string StallWatch::check(const EndpointLink& link, Nanos now, Nanos limit) {
  if (limit.count == 0) return {};
  Oldest oldest;
  std::size_t stalled = 0;
  link.for_each([&](const Connection& c) {
    Oldest its;
    look_at(c, c.end.sends, &its);
    look_at(c, c.end.receives, &its);
    if (its.request == nullptr || now - its.since < limit) return;
    ++stalled;
    if (its.since < oldest.since) oldest = its;
  });
  if (stalled == 0) return {};
  if (oldest.since != told_since_) {
    told_since_ = oldest.since;
    pause_ = limit;
    next_ = now;
  }
  if (now < next_) return {};
  next_ = now + pause_;
  pause_ = pause_ * 2;
  const MessageRequest& r = *oldest.request;
  const MessageEnd& flow = oldest.connection->end;
  const std::uint64_t number = r.sends ? r.number : r.group_first;
  std::string text = std::string(r.sends ? "send" : "receive") + " #" + std::to_string(number) + " of " +
                     std::to_string(r.whole()) + " bytes (" + std::to_string(r.moved(flow.piece_bytes)) +
                     " done) has made no progress for " + milliseconds(now - oldest.since) + ": " +
                     what_for(link, flow, r) + "; " + link.describe() + ", links " + link.channel->describe_paths() +
                     ", last heard " + milliseconds(now - link.channel->last_heard()) + " ago";
  if (stalled > 1) text += "; " + std::to_string(stalled - 1) + " more connections with it wait";
  return text;
}

}  // namespace canarynet
