#!/usr/bin/env python3
"""Checks every #include (and every DEPS of a library) against the table of layers: arrows point only downward.

  include_rule_test.py [ROOT]

Prints each breach as file:line with the rule it breaks; exit status 1 if there is any. First it feeds itself sources
that must fail, so that a checker that has gone blind fails as well. Tests (x_test.cc, x_test_util.h, x_fixture.h,
x_fuzz.cc, x_bench.cc, anything in tests/) may see everything; nothing else may see them.
"""
import os
import re
import sys

# A folder may include itself, the folders below it that are named here, and nothing else of ours. The longest matching
# prefix of a path counts.
ENGINE_BASE = {"base"}
TRANSPORT = {"base", "kernels", "topology", "compress", "security"}
BELOW_ENGINE = {"base", "kernels", "topology", "compress", "security", "transport"}
ENGINE = BELOW_ENGINE | {"collectives", "control", "sync", "port"}
ALLOWED = {
    "include": set(),
    "base": set(),
    "kernels": {"base"},
    "topology": {"base"},
    "discovery": {"base", "topology"},
    "port": {"base"},
    "compress": {"base", "kernels"},
    "security": {"base"},
    "transport": TRANSPORT,
    "collectives": BELOW_ENGINE,
    "control": BELOW_ENGINE | {"sync"},  # the supervisor runs the deciders
    "sync": {"base"},
    "engine": ENGINE,
    "runtime": ENGINE | {"engine", "discovery", "daemon/ipc"},
    "embed": ENGINE | {"engine", "discovery", "runtime", "daemon/client", "daemon/ipc"},
    "sim": ENGINE | {"engine"},
    "daemon/ipc": {"base"},
    "daemon/client": {"base", "daemon/ipc"},
    "daemon/server": ENGINE | {"engine", "discovery", "runtime", "daemon/ipc"},
    # Outside the library: its public headers, like any user of it.
    "plugins": {"daemon/ipc"},
    "tools": {"base", "daemon/ipc"},  # shared by the tools: command lines, words about the environment
    "tools/perf": {"daemon/ipc"},  # measures what a user gets, through the public headers
    # It starts ranks but is none: it shares the words (Status, units, settings table), never the engine.
    "tools/run": {"base"},
    "tools/plan": {"base", "topology", "collectives"},
    "tools/ctl": {"base", "kernels", "topology", "discovery", "daemon/ipc"},  # info tells what the library would find
    # The trainer in virtual time learns with the training example's network and images (decision 47).
    "tools/sim": ENGINE | {"engine", "sim", "examples/train_fashion_mnist"},
    "examples": set(),
    "examples/train_fashion_mnist": set(),
    "bench": set(),
}
# These make libcanarynet, which must load anywhere, so they use only the C++ library and the kernel's headers.
NO_THIRD_PARTY = {"include", "base", "kernels", "topology", "discovery", "compress", "security", "transport",
                  "port", "collectives", "control", "sync", "engine", "runtime", "embed", "daemon/ipc", "daemon/client"}
THIRD_PARTY_BUT = {"kernels": ("hwy/",), "security": ("openssl/",), "transport/verbs": ("infiniband/", "rdma/"),
                   "transport/dpdk": ("rte_",)}
# Below embed only the vocabulary of the public headers (codes, types) may be used, not the calls.
PUBLIC_BELOW_EMBED = {"canarynet/types.h"}
SEES_PUBLIC_CALLS = {"include", "embed", "sim", "daemon/client", "daemon/server", "plugins", "tools", "examples",
                     "bench"}

SYSTEM_FOLDERS = ("sys/", "net/", "netinet/", "arpa/", "linux/", "asm/", "bits/")
SYSTEM_HEADERS = set("""
aio.h assert.h cpuid.h ctype.h dirent.h dlfcn.h elf.h endian.h byteswap.h err.h errno.h execinfo.h fcntl.h float.h
getopt.h grp.h ifaddrs.h immintrin.h inttypes.h limits.h malloc.h math.h nmmintrin.h netdb.h poll.h pthread.h pwd.h
sched.h semaphore.h signal.h stdalign.h stdarg.h stdatomic.h stdbool.h stddef.h stdint.h stdio.h stdlib.h string.h
strings.h syscall.h syslog.h termios.h time.h unistd.h wchar.h xmmintrin.h emmintrin.h arm_acle.h arm_neon.h
""".split())

SOURCE = re.compile(r"\.(h|hpp|cc|cpp|c|inc)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
TEST = re.compile(r"(^tests/|_(test|test_util|fuzz|bench|conformance|fixture)\.(h|cc)$"
                  r"|^[^/]+/(testing|fuzz)/|^[^/]+/[^/]+/(testing|fuzz)/)")
SKIPPED_FOLDERS = {"build", "out", ".git", "__pycache__"}


def longest_prefix(path, names):
    parts = path.split("/")
    for end in range(len(parts), 0, -1):
        if "/".join(parts[:end]) in names:
            return "/".join(parts[:end])
    return None


def is_system(header):
    if "/" in header:
        return header.startswith(SYSTEM_FOLDERS)
    return header in SYSTEM_HEADERS or "." not in header  # <vector>


def check_include(path, header, quoted, exists):
    """None, or why the file at `path` may not include `header`. `exists(path)` says whether the repository has it."""
    folder = longest_prefix(os.path.dirname(path), ALLOWED)
    if folder is None:
        return None if TEST.search(path) else "%s is in no folder of the table" % path
    if header.startswith("canarynet/"):
        if not exists("include/" + header):
            return "there is no such public header"
        if TEST.search(path) or folder.split("/")[0] in SEES_PUBLIC_CALLS or folder in SEES_PUBLIC_CALLS:
            return None
        return None if header in PUBLIC_BELOW_EMBED else "%s/ sees only %s of the public headers" % (
            folder, ", ".join(sorted(PUBLIC_BELOW_EMBED)))
    if quoted:
        if not exists(header):
            return "quoted includes start at the repository's root"
        if TEST.search(path):
            return None
        if TEST.search(header):
            return "only tests include a test's header"
        target = longest_prefix(os.path.dirname(header), ALLOWED)
        if target is None:
            return "%s is in no folder of the table" % header
        # A tool may use files of its own folder and of tools/ itself, not another tool's.
        if target == folder or target in ALLOWED[folder] or (target == "tools" and folder.startswith("tools/")):
            return None
        return "%s/ may include %s, not %s/" % (
            folder, ", ".join(sorted(ALLOWED[folder])) or "only public headers", target)
    if is_system(header) or TEST.search(path):
        return None
    if folder in NO_THIRD_PARTY:
        for where, prefixes in THIRD_PARTY_BUT.items():
            if (path.startswith(where + "/")) and header.startswith(prefixes):
                return None
        return "%s/ uses no third-party headers" % folder
    return None


def breaches_of(path, text, exists):
    for match in INCLUDE.finditer(text):
        why = check_include(path, match.group(2), match.group(1) == '"', exists)
        if why:
            yield "%s:%d: #include %s: %s" % (path, text.count("\n", 0, match.start(2)) + 1, match.group(2), why)


LIBRARY = re.compile(r"canarynet_library\(\s*(\w+)([^)]*)\)")


def link_breaches_of(path, text, folder_of):
    """Checks a library's DEPS against the same table: the links mirror the includes."""
    folder = longest_prefix(os.path.dirname(path), ALLOWED)
    for match in LIBRARY.finditer(text):
        words = match.group(2).split()
        deps = words[words.index("DEPS") + 1:] if "DEPS" in words else []
        for dep in deps:
            target = folder_of.get(dep)
            shared_by_tools = target == "tools" and folder is not None and folder.startswith("tools/")
            if folder and target and target != folder and target not in ALLOWED[folder] and not shared_by_tools:
                yield "%s:%d: %s links %s: %s/ may link %s" % (
                    path, text.count("\n", 0, match.start()) + 1, match.group(1), dep, folder,
                    ", ".join(sorted(ALLOWED[folder])) or "nothing of ours")


def files_under(root):
    for folder, folders, names in os.walk(root):
        relative = os.path.relpath(folder, root)
        if relative == ".":
            folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS and not f.startswith((".", "build"))]
        if relative == os.path.join("bench", "peers"):  # stand-alone, with a build of its own
            folders[:] = []
            continue
        for name in sorted(names):
            yield name if relative == "." else relative + "/" + name


def check_tree(root):
    breaches, count = [], 0
    exists = lambda path: os.path.isfile(os.path.join(root, path))
    paths = list(files_under(root))
    lists = {p: read(root, p) for p in paths if os.path.basename(p) == "CMakeLists.txt"}
    folder_of = {m.group(1): longest_prefix(os.path.dirname(p), ALLOWED)
                 for p, text in lists.items() for m in LIBRARY.finditer(text)}
    for path, text in lists.items():
        breaches += link_breaches_of(path, text, folder_of)
    for path in paths:
        if SOURCE.search(path):
            text = read(root, path)
            count += len(INCLUDE.findall(text))
            breaches += breaches_of(path, text, exists)
    return breaches, count


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def check_itself():
    """Tries sources that must be refused, and sources that must not be: (path, line, refused)."""
    cases = [
        ("base/a.cc", '#include "transport/wire.h"', True),          # upward
        ("base/a.h", "#  include <canarynet/canarynet.h>", True),     # calls, below embed
        ("base/a.h", '#include "canarynet/types.h"', False),
        ("topology/a.cc", '#include "discovery/netlink.h"', True),
        ("discovery/a.cc", '#include "topology/rails.h"', False),
        ("discovery/a.cc", '#include "transport/wire.h"', True),
        ("transport/tcp/a.cc", '#include "transport/lane.h"', False),
        ("transport/tcp/a.cc", '#include "collectives/schedule.h"', True),
        ("collectives/a.cc", '#include "control/membership.h"', True),  # sideways
        ("engine/a.cc", '#include "discovery/netlink.h"', True),
        ("sync/a.cc", '#include "base/status.h"', False),
        ("sync/a.cc", '#include "transport/wire.h"', True),            # it only decides
        ("control/a.cc", '#include "sync/gei.h"', False),
        ("engine/a.cc", "#include <spdlog/spdlog.h>", True),
        ("engine/a.cc", "#include <gtest/gtest.h>", True),
        ("engine/a_test.cc", "#include <gtest/gtest.h>", False),
        ("engine/a.cc", '#include "engine/a_test.h"', True),          # a test's header
        ("engine/a.cc", '#include "a.h"', True),                      # not from the root
        ("engine/a.cc", '// #include "sim/cluster.h"', False),        # a comment
        ("engine/a_test.cc", '#include "sim/cluster.h"', False),
        ("transport/tcp/a_fixture.h", '#include "engine/a_test.h"', False),
        ("kernels/a_bench.cc", "#include <benchmark/benchmark.h>", False),
        ("kernels/a.cc", "#include <benchmark/benchmark.h>", True),
        ("kernels/a.cc", "#include <hwy/highway.h>", False),
        ("transport/a.cc", "#include <hwy/highway.h>", True),
        ("compress/a.cc", '#include "kernels/codec.h"', False),
        ("compress/a.cc", '#include "transport/wire.h"', True),      # codecs know no network
        ("embed/a.cc", '#include "discovery/netlink.h"', False),
        ("engine/a.cc", '#include "port/command.h"', False),
        ("port/a.cc", '#include "engine/engine.h"', True),            # callers know no engine
        ("port/a.cc", '#include "transport/wire.h"', True),
        ("embed/a.cc", '#include "runtime/context.h"', False),
        ("runtime/a.cc", '#include "embed/handles.h"', True),         # the C ABI is above
        ("runtime/a.cc", '#include "engine/engine.h"', False),
        ("runtime/a.cc", '#include "canarynet/canarynet.h"', True),
        ("daemon/server/a.cc", '#include "runtime/context.h"', False),
        ("engine/a.cc", '#include "runtime/context.h"', True),
        ("sim/a.cc", '#include "runtime/context.h"', True),
        ("tools/perf/a.cc", '#include "engine/engine.h"', True),
        ("tools/perf/a.cc", "#include <CLI/CLI.hpp>", False),
        ("tools/perf/a.cc", '#include "tools/run/options.h"', True),  # another tool's
        ("tools/plan/a.cc", '#include "collectives/schedule.h"', False),
        ("examples/a.cc", '#include "base/status.h"', True),
        ("plugins/nccl/a.cc", '#include "canarynet/canarynet.h"', False),
        ("elsewhere/a.cc", '#include "base/status.h"', True),
    ]
    known = {"transport/wire.h", "include/canarynet/canarynet.h", "include/canarynet/types.h", "discovery/netlink.h",
             "topology/rails.h", "transport/lane.h", "collectives/schedule.h", "control/membership.h",
             "engine/a_test.h",
             "sim/cluster.h", "runtime/context.h", "embed/handles.h", "port/command.h",
             "engine/engine.h", "base/status.h", "sync/gei.h", "tools/run/options.h", "kernels/codec.h"}
    wrong = ["%s %s: %s" % (path, line, "went through" if refused else "was refused") for path, line, refused in cases
             if bool(list(breaches_of(path, "// first\n" + line + "\n", known.__contains__))) != refused]
    upward = link_breaches_of("base/CMakeLists.txt", "canarynet_library(base SOURCES a.cc\n DEPS engine)",
                              {"engine": "engine"})
    downward = link_breaches_of("engine/CMakeLists.txt", "canarynet_library(engine SOURCES a.cc DEPS base)",
                                {"base": "base"})
    tools = {"arguments": "tools", "run": "tools/run"}
    shared = link_breaches_of("tools/plan/CMakeLists.txt", "canarynet_library(plan SOURCES a.cc DEPS arguments)", tools)
    sideways = link_breaches_of("tools/plan/CMakeLists.txt", "canarynet_library(plan SOURCES a.cc DEPS run)", tools)
    if not list(upward) or list(downward) or list(shared) or not list(sideways):
        wrong.append("DEPS are not read right")
    return wrong, len(cases) + 4


def main():
    wrong, cases = check_itself()
    if wrong:
        print("the checker itself is broken:\n  " + "\n  ".join(wrong))
        return 1
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    breaches, count = check_tree(root)
    if count == 0:
        print("no #include found under " + root)
        return 1
    print("\n".join(breaches) or "%d includes follow the table (%d cases of the checker's own)" % (count, cases))
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
