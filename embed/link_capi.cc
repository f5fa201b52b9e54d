// The C ABI of what is known of links.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "canarynet/canarynet.h"
#include "embed/context_handles.h"
#include "embed/last_error.h"

using namespace canarynet;

namespace {

std::uint64_t count(std::int64_t n) { return static_cast<std::uint64_t>(std::max<std::int64_t>(n, 0)); }

template <std::size_t kBytes>
void put(char (&to)[kBytes], const std::string& text) {
  std::memcpy(to, text.data(), std::min(text.size(), kBytes - 1));
}

// The caller's array, whose entries may be larger than what this library knows of them.
class Entries {
 public:
  Entries(canary_link_stats* first, std::size_t capacity)
      : at_(reinterpret_cast<std::byte*>(first)), bytes_(capacity == 0 ? 0 : first->struct_size), capacity_(capacity) {}
  // Past the capacity they are only counted.
  void add(const canary_link_stats& link) {
    if (count_++ >= capacity_) return;
    std::byte* const entry = at_ + (count_ - 1) * bytes_;
    std::memset(entry, 0, bytes_);
    std::memcpy(entry, &link, sizeof link);
    std::memcpy(entry, &bytes_, sizeof bytes_);
  }
  // Those from `first` on are all links to one peer.
  void share(std::size_t first, std::uint64_t sent) {
    for (std::size_t i = first; i < std::min(count_, capacity_); ++i) {
      std::byte* const entry = at_ + i * bytes_;
      canary_link_stats link;
      std::memcpy(&link, entry, sizeof link);
      link.share = sent == 0 ? 0 : static_cast<double>(link.transmit_bytes) / static_cast<double>(sent);
      std::memcpy(entry, &link, sizeof link);
    }
  }
  std::size_t size() const { return count_; }

 private:
  std::byte* at_;
  std::size_t bytes_, capacity_, count_ = 0;
};

canary_link_stats link_stats(const Engine& engine, const LinkView& view, Nanos now) {
  const Path& path = view.path;
  const EngineInfo& peer = engine.roster().engines[view.number];
  canary_link_stats l;
  std::memset(&l, 0, sizeof l);
  put(l.host, peer.host_name);
  put(l.device, engine.rails()[static_cast<std::size_t>(path.spec.local_rail)].device);
  put(l.remote_device, view.remote);
  l.rank = peer.ranks.front();
  l.lane = static_cast<std::uint32_t>(path.spec.lane_index);
  l.alpha_ns = count(path.link.alpha().count);
  l.beta_bytes_per_second = count(path.link.beta().count);
  l.jitter_ns = count(path.link.jitter().count);
  l.losses = path.link.losses();
  l.transmit_bytes = path.counters().bytes_sent;
  const Nanos at = path.link.sampled_at();
  l.age_ns = at.count == 0 ? UINT64_MAX : count((now - at).count);
  l.up = path.state == Path::State::kUp && !path.stalled ? 1 : 0;
  return l;
}

}  // namespace

extern "C" {

CANARY_API canary_status canary_links(canary_context* handle, canary_link_stats* links, size_t capacity,
                                      size_t* count) {
  return guarded([&]() -> canary_status {
    if (handle == nullptr || count == nullptr || (links == nullptr && capacity != 0))
      return invalid("canary_links: a NULL argument");
    if (capacity != 0 && (links->struct_size < sizeof *links || links->struct_size % alignof(canary_link_stats) != 0)) {
      return invalid("canary_links: links[0].struct_size is " + std::to_string(links->struct_size) +
                     ", expected sizeof(canary_link_stats), " + std::to_string(sizeof *links));
    }
    const Inside<canary_context> context(handle);
    if (!context) return HandlePool<canary_context>::refuse("canary_links", handle);
    Entries entries(links, capacity);
    const Nanos now = SystemClock().now();
    context->impl->with_engine([&](const Engine& e) {
      std::uint32_t peer = 0;
      std::uint64_t sent = 0;
      std::size_t first = 0;
      e.for_each_link([&](const LinkView& view) {
        if (view.ended || view.path.spec.local_rail < 0) return;
        if (view.number != peer) {
          entries.share(first, sent);
          peer = view.number;
          sent = 0;
          first = entries.size();
        }
        const canary_link_stats link = link_stats(e, view, now);
        sent += link.transmit_bytes;
        entries.add(link);
      });
      entries.share(first, sent);
    });
    *count = entries.size();
    return CANARY_OK;
  });
}

}  // extern "C"
