#include "sync/static_groups.h"

namespace canarynet::sync {
namespace {

// The other of the pair that l is in, where top, top - 1, ... down to bottom are paired; -1 for the left-over lowest.
int pair_mate(int l, int bottom, int top) {
  const int mate = (top - l) % 2 == 0 ? l - 1 : l + 1;
  return mate < bottom ? -1 : mate;
}

}  // namespace

void StaticGroups::group_of(int worker, std::int64_t iteration, WorkerSet* members) const {
  const int host = worker / locals_;
  const int local = worker % locals_;
  const auto add = [&](int h, int l) { members->add(h * locals_ + l); };
  members->clear();
  members->add(worker);
  switch (iteration % 4) {
    case 0:
      if (local == 0) {
        for (int h = 0; h < hosts_; ++h) add(h, 0);
      } else if (const int mate = pair_mate(local, 1, locals_ - 1); mate >= 0) {
        add(host, mate);
      }
      return;
    case 2: {
      const int traveller = locals_ > 1 ? 1 : 0;
      if (local == traveller) {
        const auto cycle = static_cast<int>(iteration / 4 % hosts_);
        add(rotates() ? (cycle - host + hosts_) % hosts_ : (host + hosts_ / 2) % hosts_, traveller);
      } else if (locals_ > 2 && (local == 0 || local == locals_ - 1)) {
        add(host, locals_ - 1 - local);
      } else if (local != 0) {
        if (const int mate = pair_mate(local, 2, locals_ - 2); mate >= 0) add(host, mate);
      }
      return;
    }
    default:
      for (int l = 0; l < locals_; ++l) add(host, l);
  }
}

}  // namespace canarynet::sync
