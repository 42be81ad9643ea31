# shellcheck shell=bash
# Shared bash of ./run, ./test and the tools: set-up and build. Sourced, never run; the caller has `set -euo pipefail` on
# and stands in the root of the repository. Everything here speaks on stderr, so that `./run ... --json | jq` works.

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# The package names of list files, comments dropped.
packages_in() { sed -e 's/#.*//' -e 's/[[:space:]]*$//' -e '/^$/d' "$@"; }

# Those of the given packages that are not installed. (apt is not asked: dpkg-query answers in milliseconds.)
missing_packages() {
  local installed name
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null | sed -n 's/ installed$//p' || true)
  for name in "$@"; do
    grep -qxF -- "$name" <<<"$installed" || printf '%s\n' "$name"
  done
}

# Installs what the list files name and the machine lacks: as root, or through sudo; else prints the line to run and stops.
install_packages() {
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
    die "this script sets up Debian 12; elsewhere install the libraries named in $* and run: cmake --preset release && cmake --build --preset release"
  local wanted missing as_root=()
  mapfile -t wanted < <(packages_in "$@")
  mapfile -t missing < <(missing_packages "${wanted[@]}")
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null || ! { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
      say "Debian packages are missing, and neither root nor sudo is at hand. Run this line, then come back:"
      say "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
      exit 1
    fi
    as_root=(sudo)
  fi
  say "Installing ${#missing[@]} Debian packages (a minute or two): ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
  "${apt[@]}" update >&2 || say "warning: apt-get update failed; trying with the package lists at hand"
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null ||
    die "apt-get could not install the packages (messages above); Debian 12 has all of them"
}

# Stops on an architecture without kernels; says what will be slow on an old CPU.
check_cpu() {
  local machine flag lacking=""
  machine=$(uname -m)
  [[ $machine == x86_64 ]] || die "this machine is $machine; Kvarto has kernels for x86-64 only so far"
  local flags
  flags=" $(sed -n 's/^flags[[:space:]]*: //p' /proc/cpuinfo | head -n 1) "
  for flag in avx2 fma f16c; do
    [[ $flags == *" $flag "* ]] || lacking+=" $flag"
  done
  [[ -z $lacking ]] || say "note: this CPU lacks$lacking: the scalar path runs, with the same results but about ten times slower"
}

# Bytes of memory that new processes may take: MemAvailable, or less where a cgroup (v2 or v1) says so.
available_memory() {
  local best limit used path dir
  best=$(($(sed -n 's/^MemAvailable:[[:space:]]*\([0-9]*\) kB$/\1/p' /proc/meminfo) * 1024))
  path=$(sed -n 's/^0:://p' /proc/self/cgroup 2>/dev/null || true)
  for dir in "/sys/fs/cgroup$path" /sys/fs/cgroup /sys/fs/cgroup/memory; do
    if [[ -r $dir/memory.max ]]; then
      limit=$(<"$dir/memory.max") used=$(<"$dir/memory.current")
    elif [[ -r $dir/memory.limit_in_bytes ]]; then
      limit=$(<"$dir/memory.limit_in_bytes") used=$(<"$dir/memory.usage_in_bytes")
    else
      continue
    fi
    # v1 writes "no limit" as a number near 2^63.
    [[ $limit == max ]] || ((limit >= 1 << 60)) || ((limit - used >= best)) || best=$((limit - used))
  done
  echo $((best > 0 ? best : 0))
}

# Compile jobs: one per core, as long as each has 1.2 GB.
compile_jobs() {
  local cores fit
  cores=$(nproc)
  fit=$(($(available_memory) / 1200000000))
  echo $((fit < 1 ? 1 : fit < cores ? fit : cores))
}

# build PRESET TARGET...: configures where needed, then builds. Silent when there is nothing to do.
build() {
  local preset=$1 dir=build/$1 log jobs
  shift
  if [[ ! -f $dir/build.ninja || CMakePresets.json -nt $dir/build.ninja ]]; then
    mkdir -p "$dir"
    log=$dir/configure.log
    say "Configuring ($preset)"
    if ! cmake --preset "$preset" >"$log" 2>&1; then
      tail -n 30 "$log" >&2
      die "cmake --preset $preset failed (the whole log: $log)"
    fi
    touch "$dir/build.ninja"
  fi
  jobs=$(compile_jobs)
  NINJA_STATUS='[%f/%t %p, %es] ' nice ninja -C "$dir" -j "$jobs" "$@" | show_progress "$* ($preset, $jobs compile jobs)" ||
    die "the build failed (messages above)"
}

# Shows ninja's output: progress on one line of a terminal, line by line elsewhere, and nothing at all when there is no work.
show_progress() {
  local title="Building $1" line columns=${COLUMNS:-80} open=""
  while IFS= read -r line; do
    case $line in
      "ninja: Entering"* | "ninja: no work"* | *"Re-checking globbed directories"* | *"GLOB mismatch"*) continue ;;
    esac
    [[ -z $title ]] || say "$title"
    title=""
    if [[ -t 2 && $line == "["* ]]; then
      printf '\r\033[K%s' "${line:0:columns-1}" >&2
      open=yes
    else
      [[ -z $open ]] || say ""
      say "$line"
      open=""
    fi
  done
  [[ -z $open ]] || say ""
}
