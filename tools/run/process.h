// tools/run/process.h -- small pieces for processes and namespaces: pipes, pids as seen from outside, helpers
// that run inside another network namespace.
//
// All of canary-run is single-threaded, so fork() without exec is safe. Children end with _exit.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/status.h"

namespace canarynet::run {

struct Pipe {
  Descriptor read, write;
};
// The pipe is close-on-exec at both ends.
Result<Pipe> make_pipe();

// Returns false on EOF, error or a short transfer.
bool write_all(int fd, const void* data, std::size_t size);
bool read_all(int fd, void* data, std::size_t size);
Status write_file(const std::string& path, const std::string& text);
std::string read_text(const std::string& path);

// Pids as the /proc of canary-run's caller shows them: taken before a new /proc is mounted.
class OuterPids {
 public:
  // Opens /proc. Call once before the mount namespace changes.
  Status open();
  // The calling process's own pid there; its inner pid if /proc can't tell.
  pid_t self() const;
  // Opens /proc/PID/`file`; the descriptor is not open if that fails.
  Descriptor open(pid_t outer, const std::string& file) const;

 private:
  Descriptor proc_;
};

// Runs `body` in a forked child inside the network namespace and waits. The text that it returns is the error ("" is
// success).
Status run_in_network(int network_fd, const std::function<std::string()>& body);
// Runs a program there with `input` as its standard input; a failure carries its stderr output.
Status run_program(int network_fd, const std::vector<std::string>& argv, const std::string& input);

// Makes the calling process die with its parent, and have the default dispositions of signals that canary-run changed.
void become_child();

}  // namespace canarynet::run
