# shellcheck shell=bash
# The stages of ./test, one function each, and how results are counted. Sourced by ./test after tools/lib.sh; the table of
# stages and modes stands in ./test. A gtest test counts as one, so does a `check`.

passed=0 failed=0 skipped=0
skip_lines=() fail_lines=()
mode=default
results=build/test-results

begin_results() {
  mode=$1
  rm -rf "$results"
  mkdir -p "$results"
}

nothing_yet() { echo "   nothing to run here yet: $*"; }

# check NAME COMMAND...: one test that is not gtest's. Exit code 77 is a skip; its last line of output is the reason.
check() {
  local name=$1 log=$results/$1.log status=0
  shift
  timeout "${check_timeout:-1800}" "$@" >"$log" 2>&1 </dev/null || status=$?
  case $status in
    0) passed=$((passed + 1)) && echo "   ok $name" ;;
    77)
      skipped=$((skipped + 1))
      skip_lines+=("SKIP $name: $(tail -n 1 "$log")")
      ;;
    *)
      failed=$((failed + 1))
      fail_lines+=("FAIL $name: exit code $status, log in $log")
      echo "   FAIL $name (exit code $status)"
      tail -n 40 "$log" | sed 's/^/     /'
      ;;
  esac
}

# run_gtest LABEL BINARY FILTER [WRAPPER...]: runs the tests of one binary that FILTER picks and adds up its XML report.
run_gtest() {
  local label=$1 binary=$2 filter=$3 report log status=0 line start=$SECONDS p=0 f=1 s=0
  shift 3
  report=$results/$label.xml log=$results/$label.log
  # The watchdog only ends a hung binary; nothing is judged by the clock.
  timeout 3600 "$@" "$binary" --gtest_filter="$filter" --gtest_output="xml:$PWD/$report" --gtest_color=no \
    >"$log" 2>&1 </dev/null || status=$?
  while IFS= read -r line; do
    case $line in
      SKIP*) skip_lines+=("$line") ;;
      FAIL*) fail_lines+=("$line") ;;
      counts*) read -r _ p f s <<<"$line" ;;
    esac
  done < <(python3 tools/gtest_report.py "$label" "$report" "$status" "$log")
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  if ((p + f + s)); then
    echo "   $label: $p passed, $f failed, $s skipped ($((SECONDS - start)) s)"
  fi
  if ((f)); then
    grep -nE 'FAILED|Failure|error:|ERROR:|WARNING: ThreadSanitizer|CHECK' "$log" | head -n 20 | sed 's/^/     /' || true
    echo "     the whole log: $log"
  fi
}

# The test binaries of a build folder, as names.
test_binaries() { ninja -C "$1" -t targets all | sed -n 's/^\(test_[a-z_]*\): CXX_EXECUTABLE.*/\1/p' | sort; }

# Tests whose suite is named Golden... need a real model. Those of the two optional models name it in suite or test.
readonly without_golden='-Golden*:*/Golden*'

golden_filter() {
  local optional='*Gemma*:*gemma*:*Qwen*:*qwen*:*tm05*'
  case $mode in
    all) echo 'Golden*:*/Golden*' ;;
    *) echo "Golden*:*/Golden*-$optional" ;;
  esac
}

stage_set_up() {
  install_packages packages.txt packages-test.txt
  local status=0 which=smollm2
  [[ $mode == all ]] && which=all
  tools/fetch_models "$which" >"$results/fetch_models.out" || status=$?
  # 3: something optional is not in the registry; collect_setup_skips counts it.
  ((status == 0 || status == 3)) || return 1
  [[ -x tools/fetch_tokenizers ]] || return 0
  status=0
  tools/fetch_tokenizers >"$results/fetch_tokenizers.out" || status=$?
  ((status == 0 || status == 3))
}

collect_setup_skips() {
  local line
  while IFS= read -r line; do
    skipped=$((skipped + 1))
    skip_lines+=("SKIP ${line#skip }")
  done < <(cat "$results"/fetch_*.out 2>/dev/null | grep '^skip ' || true)
}

stage_build() { build dev all; }

stage_unit() {
  local name
  for name in $(test_binaries build/dev); do
    run_gtest "$name" "build/dev/$name" "$without_golden"
  done
}

stage_tools() {
  local file
  check check_house tools/check_house
  check clang_format bash -c "git ls-files '*.h' '*.cc' | xargs clang-format --dry-run -Werror"
  # Debian's Python: another one on the path may lack the package.
  check check_jinja /usr/bin/python3 tests/templates/check_jinja.py
  for file in tools/*_test.py tests/*_test.py; do
    [[ ! -f $file ]] || check "$(basename "$file" .py)" python3 "$file"
  done
}

stage_real_models() {
  local name filter found=""
  filter=$(golden_filter)
  for name in $(test_binaries build/dev); do
    # Binaries without such tests are not started twice.
    [[ $("build/dev/$name" --gtest_list_tests --gtest_filter="$filter") == *$'\n  '* ]] || continue
    found=yes
    run_gtest "$name.golden" "build/dev/$name" "$filter"
  done
  [[ -n $found ]] || nothing_yet "no Golden suites"
}

stage_examples() {
  local file found=""
  for file in build/dev/example_*; do
    [[ -x $file && -f $file ]] || continue
    found=yes
    check "$(basename "$file")" "$file" models/smollm2-135m-q4_1.gguf
  done
  [[ -n $found ]] || nothing_yet "no examples"
}

stage_servers() {
  local file found=""
  for file in tests/cli/*_test.py tests/http/*_test.py tests/browser/*_test.py tests/eval/*_test.py; do
    [[ -f $file ]] || continue
    found=yes
    check "$(basename "$file" .py)" python3 "$file" build/dev/kvarto
  done
  [[ -n $found ]] || nothing_yet "no program"
}

# Puts a command off address randomisation, over which the sanitizers stumble; not every container allows that.
without_aslr=()
if setarch "$(uname -m)" -R true 2>/dev/null; then
  without_aslr=(setarch "$(uname -m)" -R)
fi

# Under sanitizers the conformance suites run on three models, one dtype and the best target, and attention is compared with
# the oracle but not with itself over all targets: the others take the same paths, slowly.
sanitized_filter() {
  case $1 in
    test_conformance)
      echo '*tiny_gemma3_float16*:*tiny_llama_float16*:*tiny_qwen3_float16*-*_scalar:*_avx2:*_avx512'
      ;;
    test_kv) echo "$without_golden:Attend.Bits*:Attend.NaN*" ;;
    *) echo "$without_golden" ;;
  esac
}

# Builds a sanitizer preset for the core libraries and runs their tests on tiny models, with fewer random cases.
sanitized() {
  local preset=$1 name wanted=()
  shift
  for name in $(test_binaries build/dev); do
    [[ " $* " == *" $name "* ]] && wanted+=("$name")
  done
  if ((${#wanted[@]} == 0)); then
    nothing_yet "none of $*"
    return
  fi
  if ! (build "$preset" "${wanted[@]}"); then
    failed=$((failed + 1))
    fail_lines+=("FAIL build of preset $preset: messages above")
    return
  fi
  for name in "${wanted[@]}"; do
    RC_PARAMS="max_success=20" run_gtest "$name.$preset" "build/$preset/$name" "$(sanitized_filter "$name")" "${without_aslr[@]}"
  done
}

stage_asan() {
  ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
    sanitized asan test_base test_format test_ops test_text test_codec test_http test_kv test_engine test_server \
      test_conformance
}

stage_tsan() {
  TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/tests/tsan.supp \
    sanitized tsan test_base test_http test_kv test_engine test_server test_conformance
}

stage_install() {
  if [[ $(ninja -C build/dev -t targets all) == *kvarto_lib_static:\ phony* ]]; then
    check installation tools/check_install build/dev
  else
    nothing_yet "no library"
  fi
}

stage_fuzz() {
  local file name corpus seeds names=()
  for file in tests/fuzz/*_fuzz.cc; do
    [[ ! -f $file ]] || names+=("$(basename "$file" .cc)")
  done
  if ((${#names[@]} == 0)); then
    nothing_yet "no fuzzers"
    return
  fi
  if ! (build fuzz "${names[@]}"); then
    failed=$((failed + 1))
    fail_lines+=("FAIL build of preset fuzz: messages above")
    return
  fi
  for name in "${names[@]}"; do
    # New inputs go to the build folder; the committed seeds are only read.
    corpus=build/fuzz/corpus/$name
    mkdir -p "$corpus"
    seeds=("tests/fuzz/corpus/${name%_fuzz}")
    [[ -d ${seeds[0]} ]] || seeds=()
    check "$name" "${without_aslr[@]}" "build/fuzz/$name" -max_total_time="${fuzz_seconds:-60}" -timeout=25 \
      -rss_limit_mb=2048 -artifact_prefix="$results/" "$corpus" "${seeds[@]}"
  done
}

stage_faults() {
  if [[ -x tools/check_faults ]]; then
    check planted_faults tools/check_faults
  else
    nothing_yet "no tools/check_faults"
  fi
}
