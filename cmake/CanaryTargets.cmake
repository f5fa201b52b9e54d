# One target per folder, warnings and sanitizers on our own targets only (no global flags).

function(canarynet_own_flags target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
  if(CANARYNET_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${CANARYNET_SANITIZE} -fno-sanitize-recover=all
      -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${CANARYNET_SANITIZE})
  endif()
  if(CANARYNET_FUZZERS)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)  # coverage, which libFuzzer is blind without
  endif()
endfunction()

# canarynet_library(NAME SOURCES a.cc … [SEPARATE b.cc …] [DEPS base …])
# A static library canarynet_NAME, alias canarynet::NAME; #include paths start at the repository's root. Sanitized builds
# compile its SOURCES in bundles, so that headers are read once for several of them; those under SEPARATE can't share a
# bundle, since they define the same names or include headers that exclude each other. Ordinary builds compile each by
# itself, so that no source forgets an include.
function(canarynet_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;SEPARATE" ${ARGN})
  add_library(canarynet_${name} STATIC ${ARG_SOURCES} ${ARG_SEPARATE})
  add_library(canarynet::${name} ALIAS canarynet_${name})
  target_include_directories(canarynet_${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  foreach(dep ${ARG_DEPS})
    target_link_libraries(canarynet_${name} PUBLIC canarynet::${dep})
  endforeach()
  canarynet_own_flags(canarynet_${name})
  if(CANARYNET_SANITIZE)
    set_target_properties(canarynet_${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
    set_source_files_properties(${ARG_SEPARATE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# canarynet_program(NAME SOURCES a.cc … [LIBS canarynet::runtime …])
function(canarynet_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
  canarynet_own_flags(${name})
endfunction()

# Flags of test code: as our own, but in sanitized builds not optimised (checks are compiled in either way, and it takes
# half the time) and with the test framework's headers precompiled. Ordinary builds go without, so that no source
# forgets an include.
function(canarynet_test_flags target)
  canarynet_own_flags(${target})
  if(NOT CANARYNET_SANITIZE)
    return()
  endif()
  target_compile_options(${target} PRIVATE -O0)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    if(NOT TARGET canarynet_test_headers)
      file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/test_headers.cc CONTENT "int main() {}\n")
      add_executable(canarynet_test_headers ${PROJECT_BINARY_DIR}/test_headers.cc)
      target_link_libraries(canarynet_test_headers PRIVATE GTest::gtest)
      target_precompile_headers(canarynet_test_headers PRIVATE <gtest/gtest.h> <algorithm> <chrono> <cstring>
        <functional>
        <map> <memory> <string> <thread> <vector>)
      canarynet_own_flags(canarynet_test_headers)
      target_compile_options(canarynet_test_headers PRIVATE -O0)
    endif()
    target_precompile_headers(${target} REUSE_FROM canarynet_test_headers)
  endif()
endfunction()

# Sources that are long to compile and short to run (a command line's options): not optimised in sanitized builds.
function(canarynet_cold_sources)
  if(CANARYNET_SANITIZE)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O0)
  endif()
endfunction()

# canarynet_test(NAME SOURCES a_test.cc … [LIBS canarynet::base …] [LABELS net …] [TIMEOUT seconds] [SERIAL]) One
# binary, one ctest entry. Labels (docs/testing.md): "net" (namespaces, needs root, runs alone), "sim" (long
# simulations), "threads" (also runs under TSan; the target threads_tests builds just these).
function(canarynet_test name)
  if(NOT CANARYNET_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} GTest::gtest GTest::gtest_main)
  canarynet_test_flags(${name})
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  # It is there for tests that hang: under sanitizers on a busy machine others take as long.
  if(CANARYNET_SANITIZE AND ARG_TIMEOUT LESS 600)
    set(ARG_TIMEOUT 600)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  if(ARG_SERIAL OR "net" IN_LIST ARG_LABELS)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)  # shaped links and time limits do not share two cores
  endif()
  if("threads" IN_LIST ARG_LABELS)
    if(NOT TARGET threads_tests)
      add_custom_target(threads_tests)
    endif()
    add_dependencies(threads_tests ${name})
  endif()
endfunction()

# canarynet_fuzzer(NAME SOURCES a_fuzz.cc … [LIBS canarynet::transport …])
# a_fuzz.cc defines LLVMFuzzerTestOneInput; tests/corpus/NAME/ holds inputs worth keeping (small ones, crashes above
# all). With CANARYNET_FUZZERS (clang) it is a libFuzzer binary, run for CANARYNET_FUZZ_SECONDS by ctest, target
# `fuzzers`; otherwise a plain test that replays the corpus, so that no compiler and no sanitizer forgets an old crash.
set(CANARYNET_FUZZ_SECONDS 20 CACHE STRING "how long ctest runs each fuzz target")
function(canarynet_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  set(corpus ${PROJECT_SOURCE_DIR}/tests/corpus/${name})
  if(CANARYNET_FUZZERS)
    add_executable(${name} ${ARG_SOURCES})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set(found ${CMAKE_CURRENT_BINARY_DIR}/${name}-found)  # new inputs go here; crash-* and leak-* beside it
    file(MAKE_DIRECTORY ${found})
    if(NOT EXISTS ${corpus})
      set(corpus)
    endif()
    add_test(NAME ${name} COMMAND ${name} -max_total_time=${CANARYNET_FUZZ_SECONDS} -timeout=10 -rss_limit_mb=2048
      -print_final_stats=1 ${found} ${corpus})
    math(EXPR limit "${CANARYNET_FUZZ_SECONDS} + 60")
    set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT ${limit})
    if(NOT TARGET fuzzers)
      add_custom_target(fuzzers)
    endif()
    add_dependencies(fuzzers ${name})
  elseif(CANARYNET_TESTS)
    add_executable(${name} ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/fuzz_replay.cc)
    add_test(NAME ${name}_corpus COMMAND ${name} ${corpus})
    set_tests_properties(${name}_corpus PROPERTIES TIMEOUT 120)
  else()
    return()
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS})
  canarynet_own_flags(${name})
endfunction()
