# Every third-party package, once. Debian's CMake files are used where they are sound, pkg-config elsewhere.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(tl-expected REQUIRED)
find_package(benchmark REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(yaml REQUIRED IMPORTED_TARGET yaml-cpp)
pkg_check_modules(zmq REQUIRED IMPORTED_TARGET libzmq)
pkg_check_modules(prometheus REQUIRED IMPORTED_TARGET prometheus-cpp-core)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)

add_library(kvarto_deps INTERFACE)
target_include_directories(kvarto_deps INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
target_link_libraries(kvarto_deps INTERFACE Threads::Threads OpenSSL::Crypto OpenSSL::SSL
  nlohmann_json::nlohmann_json tl::expected PkgConfig::pcre2 PkgConfig::utf8proc PkgConfig::xxhash
  spdlog::spdlog CLI11::CLI11)
# Highway: three targets only (scalar array, AVX2, AVX-512 with VNNI). The baseline is scalar so that nothing runs before dispatch.
target_compile_definitions(kvarto_deps INTERFACE
  HWY_BASELINE_TARGETS=HWY_SCALAR HWY_WANT_AVX3_DL=1 HWY_BROKEN_EMU128=1
  "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3)"
  BOOST_ASIO_NO_DEPRECATED SPDLOG_NO_EXCEPTIONS=0
  $<$<BOOL:${KVARTO_DEBUG_CHECKS}>:KVARTO_DEBUG_CHECKS=1>
  $<$<BOOL:${KVARTO_FAULTS}>:KVARTO_FAULTS=1>
  KVARTO_VERSION="${PROJECT_VERSION}")
# Contraction off: each fused multiply-add is written out, so every target computes the same bits (DESIGN section 2).
target_compile_options(kvarto_deps INTERFACE -ffp-contract=off -Wall -Wextra
  $<$<BOOL:${KVARTO_WERROR}>:-Werror>)
