#!/usr/bin/env python3
"""Compares the library's ABI with those on record, now and earlier; before that, tries scripts/check-abi on headers,
and commits, that it must not let pass.

  abi_test.py SOURCE BUILD
"""
import os
import shutil
import subprocess
import sys
import tempfile

BROKEN, ADDED, SAME = 1, 3, 0

# (what happens to the header, old text, new text, exit status, what must be said)
CHANGES = [
    ("a field in the middle", "  uint64_t receive_bytes;\n", "  uint64_t receive_bytes;\n  uint64_t surprise;\n",
     BROKEN,
     ["field canary_nic_stats.surprise is new in a struct without struct_size",
      "field canary_nic_stats.failovers changed", "struct canary_nic_stats changed", "--accept-breaking"]),
    ("a field of another type", "  uint32_t lanes_up;\n", "  int32_t lanes_up;\n", BROKEN,
     ["field canary_nic_stats.lanes_up changed"]),
    ("two fields exchanged",
     "  int rank;           /* culprit's world rank; -1: unknown */\n"
     "  const char* host;   /* culprit's host, or \"\" */\n",
     "  const char* host;\n  int rank;\n", BROKEN,
     ["field canary_error.rank changed", "field canary_error.host changed"]),
    ("a field that is gone", "  uint64_t elapsed_ns;\n", "", BROKEN, ["field canary_error.elapsed_ns is gone"]),
    ("an enum value that moved", "CANARY_CLOSED = 20", "CANARY_CLOSED = 22", BROKEN,
     ["enum canary_status.CANARY_CLOSED changed: 22, was 20"]),
    ("a parameter more", "canary_finalize(canary_context* context)",
     "canary_finalize(canary_context* context, int hard)", BROKEN, ["function canary_finalize changed"]),
    ("a function that is gone", "CANARY_API const char* canary_version(void);\n", "", BROKEN,
     ["function canary_version is gone"]),
    ("a callback of another type", "int level, const char* line, size_t length);", "int level, const char* line);",
     BROKEN, ["typedef canary_log_fn changed"]),
    ("a field at the end of a struct with struct_size", "} canary_error;", "  uint64_t another;\n} canary_error;",
     ADDED, ["struct canary_error grew", "added   field canary_error.another", "--update"]),
    ("a new function", "CANARY_API const char* canary_version(void);\n",
     "CANARY_API const char* canary_version(void);\nCANARY_API int canary_another(void);\n", ADDED,
     ["added   function canary_another"]),
    ("a new enum value", "CANARY_INTERNAL = 21 ", "CANARY_INTERNAL = 21, CANARY_ANOTHER = 22 ", ADDED,
     ["enum canary_status.CANARY_ANOTHER"]),
    ("a comment", "/* \"0.1.0\". */", "/* Three numbers. */", SAME, ["as on record"]),
]
# A header and records of its own: a struct with room at its end.
PADDED = "typedef struct canary_padded {\n  size_t struct_size;\n  int first;\n} canary_padded;\n"


def check(script, *arguments):
    done = subprocess.run([sys.executable, script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    if done.returncode == 77:
        print(done.stdout)
        sys.exit(77)
    return done.returncode, done.stdout


def edit(folder, old, new):
    for name in ("canarynet.h", "types.h"):
        path = os.path.join(folder, "canarynet", name)
        with open(path) as file:
            text = file.read()
        if old in text:
            with open(path, "w") as file:
                file.write(text.replace(old, new, 1))
            return
    raise SystemExit("abi_test: the headers do not hold any more: " + old)


def commit(repository, what):
    git = ["git", "-C", repository, "-c", "user.name=abi_test", "-c", "user.email=abi_test@localhost", "-c",
           "commit.gpgsign=false"]
    subprocess.run(git + ["add", "-A"], check=True)
    subprocess.run(git + ["commit", "--quiet", "--allow-empty", "-m", what], check=True)


def check_history(script, headers, library, folder):
    """A break whose record is changed in the same commit, in a repository of its own."""
    repository = os.path.join(folder, "repository")
    record, breaks = os.path.join(repository, "abi/canarynet.abi"), os.path.join(repository, "abi/breaks")
    os.makedirs(os.path.dirname(record))
    arguments = ["--headers", headers, "--library", library, "--record", record]

    def expect(status, *parts, more=()):
        code, said = check(script, *arguments, *more)
        assert code == status, "exit status %d instead of %d\n%s" % (code, status, said)
        for part in parts:
            assert part in said, "\"%s\" is not in:\n%s" % (part, said)

    subprocess.run(["git", "init", "--quiet", repository], check=True)
    expect(SAME, more=["--update"])
    with open(record) as file:
        now = file.read()
    promised = "function canary_of_yesterday: int (void)"
    with open(record, "w") as file:
        file.write(now + promised + "\n")
    commit(repository, "The function is there")
    with open(record, "w") as file:
        file.write(now)
    gone = "canary_of_yesterday is gone"
    expect(BROKEN, "BROKEN  since ", gone, "abi/breaks")
    expect(BROKEN, gone, more=["--update"])
    commit(repository, "The function goes, and the record with it")
    expect(BROKEN, gone)
    commit(repository, "Something else")
    expect(BROKEN, gone)
    print("ok   a function that is gone from library and record: refused before the commit, after it, and later")

    clone = os.path.join(folder, "shallow")
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", "file://" + repository, clone], check=True)
    arguments[-1] = os.path.join(clone, "abi/canarynet.abi")
    expect(SAME, "shallow")
    shutil.rmtree(os.path.join(clone, ".git"))
    expect(SAME, "no history here")
    print("ok   clones without that history: passed, and told")

    arguments[-1] = record
    expect(2, "takes the reason", more=["--accept-breaking", " "])
    expect(SAME, "1 promises are taken back", more=["--accept-breaking", "nobody could call it"])
    with open(breaks) as file:
        assert promised + " -- nobody could call it\n" in file.read()
    expect(SAME, "compared with the 2 versions")
    commit(repository, "The break is said")
    expect(SAME, "compared with the 2 versions")
    print("ok   a break with its reason: passed")


def main():
    source, build = sys.argv[1:]
    script = os.path.join(source, "scripts/check-abi")
    headers = os.path.join(source, "include")
    library = os.path.join(build, "embed/libcanarynet.so")
    with tempfile.TemporaryDirectory(prefix="canary-abi-test.") as folder:
        record = os.path.join(folder, "record.abi")
        code, said = check(script, "--headers", headers, "--library", library, "--record", record, "--update")
        assert code == SAME, said
        for what, old, new, expected, parts in CHANGES:
            copy = os.path.join(folder, "include")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(headers, copy)
            edit(copy, old, new)
            code, said = check(script, "--headers", copy, "--library=", "--record", record)
            assert code == expected, "%s: exit status %d instead of %d\n%s" % (what, code, expected, said)
            for part in parts:
                assert part in said, "%s: \"%s\" is not in:\n%s" % (what, part, said)
            if expected == BROKEN:
                assert check(script, "--headers", copy, "--library", library, "--record", record,
                             "--update")[0] == BROKEN, what
            print("ok   %s: %s" % (what, {BROKEN: "refused", ADDED: "an addition", SAME: "nothing"}[expected]))

        shutil.rmtree(copy)
        shutil.copytree(headers, copy)
        edit(copy, "/* The last failure in this thread", PADDED + "/* The last failure in this thread")
        assert check(script, "--headers", copy, "--library", library, "--record", record, "--update")[0] == SAME
        edit(copy, "  int first;\n", "  int first;\n  int second;\n")
        code, said = check(script, "--headers", copy, "--library=", "--record", record)
        assert code == BROKEN and "lies within the older struct" in said, said
        print("ok   a field in the padding at the end: refused")

        empty = os.path.join(folder, "empty.so")
        subprocess.run(["cc", "-shared", "-o", empty, "-x", "c", "/dev/null"], check=True)
        code, said = check(script, "--headers", headers, "--library", empty, "--record",
                           os.path.join(source, "abi/canarynet.abi"))
        assert code == BROKEN and "symbol canary_init is gone" in said, said
        print("ok   a library without the symbols: refused")

        if shutil.which("git"):
            check_history(script, headers, library, folder)
        else:
            print("     earlier records: not tried, git is not installed")

    code, said = check(script, "--headers", headers, "--library", library)
    print(said.strip())
    sys.exit(code)


if __name__ == "__main__":
    main()
