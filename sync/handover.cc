#include "sync/handover.h"

#include <utility>

namespace canarynet::sync {

Handover::Handover(int workers, Meetings meetings)
    : meetings_(std::move(meetings)), left_out_(workers), served_(workers), rest_(workers) {}

int Handover::choose(const WorkerSet& here, const WorkerSet& behind) {
  left_out_.clear();
  int source = -1, least = 0;
  for (int w = here.next(); w >= 0; w = here.next(w + 1)) {
    if (behind.has(w)) continue;
    rest_ = behind;
    rest_.add(w);
    meetings_.reach(w, rest_, &served_);
    const int missed = rest_.count() - served_.count();
    if (source >= 0 && missed >= least) continue;
    rest_ = here;
    for (int b = behind.next(); b >= 0; b = behind.next(b + 1)) {
      if (!served_.has(b)) rest_.remove(b);
    }
    if (!meetings_.connected(rest_)) continue;
    source = w;
    least = missed;
    left_out_ = behind;
    for (int b = served_.next(); b >= 0; b = served_.next(b + 1)) left_out_.remove(b);
    if (missed == 0) break;
  }
  return source;
}

}  // namespace canarynet::sync
